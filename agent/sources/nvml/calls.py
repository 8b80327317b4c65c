"""NVML calls that store their errors."""

from __future__ import annotations

from typing import Any, NamedTuple

from agent.snapshot import LOST_ERRORS

# pynvml's names lack the version suffix of the C function.
_BINDING_NAMES = {
    "nvmlDeviceGetCount_v2": "nvmlDeviceGetCount",
    "nvmlDeviceGetHandleByIndex_v2": "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetNvLinkRemotePciInfo_v2": "nvmlDeviceGetNvLinkRemotePciInfo",
    "nvmlInit_v2": "nvmlInit",
}
# nvmlValueType_t -> member of the union c_nvmlValue_t (nvml.h)
_VALUE_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
_FIELDS_PER_CALL = 512  # 36 ports have 291 fields


class FieldValues(NamedTuple):
    """Values of ``nvmlDeviceGetFieldValues`` by ``(field id, scope id)``, and the error names of the others."""

    values: dict[tuple[int, int], int]
    errors: dict[tuple[int, int], str]


class NvmlLibrary(NamedTuple):
    """``pynvml`` and the names of its error codes: ``{15: "GPU_IS_LOST"}``."""

    lib: Any
    error_names: dict[int, str]

    @classmethod
    def from_module(cls, lib: Any) -> NvmlLibrary:
        """Return the library with the error names of this version of it."""
        names = (name for name in dir(lib) if name.startswith("NVML_ERROR_"))
        return cls(lib, {getattr(lib, name): name.removeprefix("NVML_ERROR_") for name in names})

    def error_name(self, code: int) -> str:
        """Return ``GPU_IS_LOST``; ``ERROR_1234`` for a code that the bindings do not know."""
        return self.error_names.get(code, f"ERROR_{code}")


class NvmlCalls:
    """Calls NVML for one object. A failed call returns None; ``errors`` has its error by the C function's name."""

    def __init__(self, library: NvmlLibrary) -> None:
        self.library = library
        self.errors: dict[str, str] = {}

    def call(self, call: str, *arguments: Any) -> Any:
        """Return the result of an NVML function; None where it failed."""
        answer, error = self.try_call(call, *arguments)
        if error is not None:
            self.errors[call] = error
        return answer

    def call_text(self, call: str, *arguments: Any, field: str | None = None) -> str | None:
        """Return a text, or the text field of a structure; None where the call failed or the text is unreadable."""
        answer = self.call(call, *arguments)
        try:
            value = answer if field is None or answer is None else getattr(answer, field)
            return value.decode() if isinstance(value, bytes) else value
        except UnicodeDecodeError:  # pynvml decodes on access; in virtual machines the field may be garbage
            self.errors[call] = "UNREADABLE"
            return None

    def try_call(self, call: str, *arguments: Any) -> tuple[Any, str | None]:
        """Return ``(result, None)`` or ``(None, error name)``; stores no error."""
        function = getattr(self.library.lib, _BINDING_NAMES.get(call, call), None)
        if function is None:  # the bindings do not have this function
            return None, "FUNCTION_NOT_FOUND"
        try:
            return function(*arguments), None
        except self.library.lib.NVMLError as error:
            return None, self.library.error_name(error.value)
        except UnicodeDecodeError:  # pynvml decodes the result
            return None, "UNREADABLE"

    def field_values(self, handle: Any, wanted: list[tuple[int, int]]) -> FieldValues:
        """Return the values of fields, by ``(field id, scope id)``. Each value has an error of its own."""
        found = FieldValues({}, {})
        for start in range(0, len(wanted), _FIELDS_PER_CALL):
            part = wanted[start : start + _FIELDS_PER_CALL]
            answer, error = self.try_call("nvmlDeviceGetFieldValues", handle, part)
            if error is not None:
                self.errors["nvmlDeviceGetFieldValues"] = error
                found.errors.update(dict.fromkeys(part, error))
            for value in answer or ():
                key = (value.fieldId, value.scopeId)
                if value.nvmlReturn != self.library.lib.NVML_SUCCESS:
                    found.errors[key] = self.library.error_name(value.nvmlReturn)
                    if found.errors[key] in LOST_ERRORS:
                        self.errors["nvmlDeviceGetFieldValues"] = found.errors[key]
                elif value.valueType < len(_VALUE_MEMBERS):
                    found.values[key] = int(getattr(value.value, _VALUE_MEMBERS[value.valueType]))
        return found
