"""Hardware profiles: what a device supports and what it costs, as people author it in YAML."""

from hwbmpq.deprecated import renamed_attribute
from hwbmpq.hardware.files import missing_folders as missing_folders
from hwbmpq.hardware.files import search_folders as search_folders
from hwbmpq.hardware.files import shipped_folder as shipped_folder
from hwbmpq.hardware.formats import NumberFormat as NumberFormat
from hwbmpq.hardware.formats import WidthPair as WidthPair
from hwbmpq.hardware.json_schema import profile_json_schema as profile_json_schema
from hwbmpq.hardware.load import Listing as Listing
from hwbmpq.hardware.load import check_profile as check_profile
from hwbmpq.hardware.load import list_profiles as list_profiles
from hwbmpq.hardware.load import load_profile as load_profile
from hwbmpq.hardware.lookup_table import LookupTable as LookupTable
from hwbmpq.hardware.problems import ProfileError as ProfileError
from hwbmpq.hardware.problems import ProfileProblem as ProfileProblem
from hwbmpq.hardware.profile import HardwareProfile as HardwareProfile
from hwbmpq.hardware.schema import Figure as Figure
from hwbmpq.hardware.schema import is_name as is_name
from hwbmpq.hardware.template import QUESTIONS as QUESTIONS
from hwbmpq.hardware.template import new_profile as new_profile
from hwbmpq.hardware.template import profile_based_on as profile_based_on
from hwbmpq.hardware.widths import candidates as candidates
from hwbmpq.hardware.widths import common_widths as common_widths
from hwbmpq.hardware.widths import first_last_precision as first_last_precision
from hwbmpq.hardware.widths import layer_candidates as layer_candidates
from hwbmpq.hardware.widths import trained_precisions as trained_precisions
from hwbmpq.hardware.widths import uniform as uniform
from hwbmpq.hardware.widths import weight_widths as weight_widths
from hwbmpq.units import format_quantity as format_quantity

__getattr__ = renamed_attribute(
    __name__, {"Problem": "ProfileProblem", "end_precision": "first_last_precision"}
)
