"""The training loop, its settings, and the folder that a run leaves behind."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from hwbmpq.deprecated import lazy_names as _lazy_names

if _TYPE_CHECKING:
    from hwbmpq.training.checkpoint import bytes_to_build as bytes_to_build
    from hwbmpq.training.checkpoint import check_state as check_state
    from hwbmpq.training.evaluation import EVALUATION_BATCH as EVALUATION_BATCH
    from hwbmpq.training.evaluation import Evaluation as Evaluation
    from hwbmpq.training.evaluation import evaluate as evaluate
    from hwbmpq.training.evaluation import evaluation_batches as evaluation_batches
    from hwbmpq.training.evaluation import figures as figures
    from hwbmpq.training.hooks import StepReport as StepReport
    from hwbmpq.training.hooks import TrainingHook as TrainingHook
    from hwbmpq.training.recipes import PAPER_RECIPES as PAPER_RECIPES
    from hwbmpq.training.recipes import get_paper_recipe as get_paper_recipe
    from hwbmpq.training.run_directory import RunDirectory as RunDirectory
    from hwbmpq.training.run_directory import of_best as of_best
    from hwbmpq.training.settings import RunSettings as RunSettings
    from hwbmpq.training.settings import read_settings as read_settings
    from hwbmpq.training.settings import resolve_settings as resolve_settings
    from hwbmpq.training.settings import settings_to_train as settings_to_train
    from hwbmpq.training.setup import find_device as find_device
    from hwbmpq.training.tensorboard import TensorBoardHook as TensorBoardHook
    from hwbmpq.training.trainer import Trainer as Trainer
    from hwbmpq.training.trust import UntrustedCodeError as UntrustedCodeError

__getattr__, __dir__, __all__ = _lazy_names(__name__)
