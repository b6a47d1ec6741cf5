"""What the project says of its speed, for anyone to measure: `bin/bench NAME`.

Times mean something only beside others of the same run, so every bench prints ratios.
"""
