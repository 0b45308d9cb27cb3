"""Hardware profiles that ship with hwbmpq, one YAML file per device."""
