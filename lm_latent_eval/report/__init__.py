"""Reports: numbers, comparisons, pages and exports of results."""
