import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_estimators_stand_alone():
    code = (
        "import sys, lm_latent_eval.estimators; "
        "assert not {'lm_eval', 'evaluate', 'transformers'} & set(sys.modules); "
        "assert 'arviz_stats' not in sys.modules, 'imported on first use only'; "
        "ours = {name for name in sys.modules if name.startswith('lm_latent_eval.')}; "
        "assert all(name.split('.')[1] == 'estimators' for name in ours), ours"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
