"""What networks are trained for: classification, regression, segmentation, or a task of your own."""

from hwbmpq.registry import TASKS as TASKS
from hwbmpq.tasks.base import Task as Task
from hwbmpq.tasks.load import check_task as check_task
from hwbmpq.tasks.load import get_task as get_task
