"""What every other room uses: checks of options, descriptions, messages, models and versions."""
