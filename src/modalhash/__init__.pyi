__version__: str

from .core.features import AnchorKernel as AnchorKernel
from .engine import Engine as Engine
from .evaluation import Protocol as Protocol, evaluate as evaluate
from .index import HammingIndex as HammingIndex
from .methods.amsh import AMSH as AMSH
from .methods.base import TrainingItems as TrainingItems
from .methods.fitted import load as load
from .methods.registry import method as method
from .methods.rlh import RLH as RLH
