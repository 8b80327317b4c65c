"""One NVML call, and what becomes of its failure."""

from __future__ import annotations

from typing import Any, NamedTuple

# pynvml spells these without the version suffix of the C function that it calls.
_SPELLED = {
    "nvmlDeviceGetCount_v2": "nvmlDeviceGetCount",
    "nvmlDeviceGetHandleByIndex_v2": "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetNvLinkRemotePciInfo_v2": "nvmlDeviceGetNvLinkRemotePciInfo",
    "nvmlInit_v2": "nvmlInit",
}
# nvmlValueType_t -> member of the union c_nvmlValue_t (nvml.h)
_VALUE_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


class Library(NamedTuple):
    """``pynvml`` and the names of its error codes: ``{15: "GPU_IS_LOST"}``."""

    lib: Any
    error_names: dict[int, str]

    @classmethod
    def of(cls, lib: Any) -> Library:
        """The library with the error names that this version of it knows."""
        names = (name for name in dir(lib) if name.startswith("NVML_ERROR_"))
        return cls(lib, {getattr(lib, name): name.removeprefix("NVML_ERROR_") for name in names})

    def error_name(self, code: int) -> str:
        """``GPU_IS_LOST``; ``ERROR_1234`` for a code younger than the bindings."""
        return self.error_names.get(code, f"ERROR_{code}")


class Calls:
    """Asks NVML about one thing. What fails is noted in ``errors`` under the C function's name and answered None."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.errors: dict[str, str] = {}

    def ask(self, call: str, *arguments: Any) -> Any:
        """The answer of an NVML function; None where it failed."""
        answer, error = self.attempt(call, *arguments)
        if error is not None:
            self.errors[call] = error
        return answer

    def text(self, call: str, *arguments: Any, field: str | None = None) -> str | None:
        """A text, or the text field of a structure; None where the call failed or NVML left no readable text."""
        answer = self.ask(call, *arguments)
        try:
            value = answer if field is None or answer is None else getattr(answer, field)
            return value.decode() if isinstance(value, bytes) else value
        except UnicodeDecodeError:  # pynvml decodes when the field is touched; virtual machines leave rubbish there
            self.errors[call] = "UNREADABLE"
            return None

    def attempt(self, call: str, *arguments: Any) -> tuple[Any, str | None]:
        """``(answer, None)`` or ``(None, error name)``; notes nothing."""
        function = getattr(self.library.lib, _SPELLED.get(call, call), None)
        if function is None:  # these bindings are older than the function
            return None, "FUNCTION_NOT_FOUND"
        try:
            return function(*arguments), None
        except self.library.lib.NVMLError as error:
            return None, self.library.error_name(error.value)
        except UnicodeDecodeError:  # pynvml decodes what a function returns
            return None, "UNREADABLE"

    def fields(self, handle: Any, wanted: list[tuple[int, int]]) -> dict[tuple[int, int], int]:
        """Integers by ``(field id, scope id)``, in one call. Each value has its own return code: failed are absent."""
        values = self.ask("nvmlDeviceGetFieldValues", handle, wanted) or ()
        return {
            (value.fieldId, value.scopeId): int(getattr(value.value, _VALUE_MEMBERS[value.valueType]))
            for value in values
            if value.nvmlReturn == self.library.lib.NVML_SUCCESS and value.valueType < len(_VALUE_MEMBERS)
        }
