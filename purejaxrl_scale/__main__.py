"""`python -m purejaxrl_scale` is the command `purejaxrl-scale`."""

import sys

from purejaxrl_scale.cli import program

sys.exit(program())
