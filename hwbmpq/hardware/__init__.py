"""Hardware profiles: what a device supports and what it costs, as people author it in YAML."""

from hwbmpq.hardware.formats import NumberFormat as NumberFormat
from hwbmpq.hardware.formats import WidthPair as WidthPair
from hwbmpq.hardware.load import check_profile as check_profile
from hwbmpq.hardware.load import list_profiles as list_profiles
from hwbmpq.hardware.load import load_profile as load_profile
from hwbmpq.hardware.load import search_folders as search_folders
from hwbmpq.hardware.lookup_table import LookupTable as LookupTable
from hwbmpq.hardware.problems import Problem as Problem
from hwbmpq.hardware.problems import ProfileError as ProfileError
from hwbmpq.hardware.schema import Figure as Figure
from hwbmpq.hardware.schema import HardwareProfile as HardwareProfile
