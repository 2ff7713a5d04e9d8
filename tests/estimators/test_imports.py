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
        "rooms = {name.split('.')[1] for name in ours}; "
        "assert rooms == {'estimators', 'devices', 'version'}, rooms"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
