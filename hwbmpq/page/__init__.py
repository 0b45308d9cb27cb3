"""Reports as one HTML file that needs nothing else: no server, no network."""

from hwbmpq.page.page import render_page as render_page
from hwbmpq.page.page import write_page as write_page
