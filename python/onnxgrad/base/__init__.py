"""Used by all other sub-packages: checks of options, descriptions, messages, models, versions."""
