"""What every part agrees on: model, errors, units, configuration, messages. Pure, no I/O."""
