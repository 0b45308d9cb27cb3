"""Reports as one HTML file that needs nothing else: no server, no network."""

from hwbmpq.report.html.page import render_page as render_page
from hwbmpq.report.html.page import write_page as write_page
