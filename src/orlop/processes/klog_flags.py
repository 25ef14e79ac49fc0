"""Flags of klog, the logger of Go programs: accepted with a warning, because many manifests set them. No effect.

Everything is logged to stderr, one line for each event; see `--v`, `--log-level` and `--log-format`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from orlop.foundation.go_flags import boolean, flag, text

NO_EFFECT: Final = "A flag of klog, without effect: everything is logged to stderr."
_WHY: Final = "it has no effect; see --v, --log-level and --log-format."


@dataclass(frozen=True, slots=True, kw_only=True)
class KlogSettings:
    add_dir_header: bool = flag(boolean, name="add_dir_header", default="false", deprecated=_WHY, help=NO_EFFECT)
    also_to_stderr: bool = flag(boolean, name="alsologtostderr", default="false", deprecated=_WHY, help=NO_EFFECT)
    backtrace_at: str = flag(text, name="log_backtrace_at", default="", deprecated=_WHY, help=NO_EFFECT)
    log_dir: str = flag(text, name="log_dir", default="", deprecated=_WHY, help=NO_EFFECT)
    log_file: str = flag(text, name="log_file", default="", deprecated=_WHY, help=NO_EFFECT)
    log_file_max_size: str = flag(text, name="log_file_max_size", default="1800", deprecated=_WHY, help=NO_EFFECT)
    to_stderr: bool = flag(boolean, name="logtostderr", default="true", deprecated=_WHY, help=NO_EFFECT)
    one_output: bool = flag(boolean, name="one_output", default="false", deprecated=_WHY, help=NO_EFFECT)
    skip_headers: bool = flag(boolean, name="skip_headers", default="false", deprecated=_WHY, help=NO_EFFECT)
    skip_log_headers: bool = flag(boolean, name="skip_log_headers", default="false", deprecated=_WHY, help=NO_EFFECT)
    stderr_threshold: str = flag(text, name="stderrthreshold", default="2", deprecated=_WHY, help=NO_EFFECT)
    vmodule: str = flag(text, name="vmodule", default="", deprecated=_WHY, help=NO_EFFECT)
    log_flush_frequency: str = flag(text, default="5s", deprecated=_WHY, help=NO_EFFECT)
    log_json_info_buffer_size: str = flag(text, default="0", deprecated=_WHY, help=NO_EFFECT)
    log_json_split_stream: bool = flag(boolean, default="false", deprecated=_WHY, help=NO_EFFECT)
    log_text_info_buffer_size: str = flag(text, default="0", deprecated=_WHY, help=NO_EFFECT)
    log_text_split_stream: bool = flag(boolean, default="false", deprecated=_WHY, help=NO_EFFECT)
