"""Hardware profiles: what a device supports and what it costs, as people author it in YAML."""

from hwbmpq.deprecated import renamed_attribute
from hwbmpq.hardware.authoring import QUESTIONS as QUESTIONS
from hwbmpq.hardware.authoring import new_profile as new_profile
from hwbmpq.hardware.authoring import profile_based_on as profile_based_on
from hwbmpq.hardware.authoring import profile_json_schema as profile_json_schema
from hwbmpq.hardware.document import ProfileError as ProfileError
from hwbmpq.hardware.document import ProfileProblem as ProfileProblem
from hwbmpq.hardware.load import Listing as Listing
from hwbmpq.hardware.load import check_profile as check_profile
from hwbmpq.hardware.load import list_profiles as list_profiles
from hwbmpq.hardware.load import load_profile as load_profile
from hwbmpq.hardware.load import missing_folders as missing_folders
from hwbmpq.hardware.load import search_folders as search_folders
from hwbmpq.hardware.load import shipped_folder as shipped_folder
from hwbmpq.hardware.lookup_table import LookupTable as LookupTable
from hwbmpq.hardware.profile import HardwareProfile as HardwareProfile
from hwbmpq.hardware.remarks import remarks_on as remarks_on
from hwbmpq.hardware.schema import Figure as Figure
from hwbmpq.hardware.schema import NumberFormat as NumberFormat
from hwbmpq.hardware.schema import WidthPair as WidthPair
from hwbmpq.hardware.schema import is_name as is_name
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
