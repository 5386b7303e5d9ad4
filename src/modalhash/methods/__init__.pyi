from .base import CrossModalHasher as CrossModalHasher, TrainingItems as TrainingItems
from .fitted import ModelFileError as ModelFileError, load as load
from .registry import Method as Method, get as get, info as info, installed as installed, method as method
