# What building kp 0.9.0 with pip lacks: its setup.py runs two of CMake's arguments together, so that CMake takes
# the first Python that it finds. Given as CMAKE_TOOLCHAIN_FILE, with the Python to build for in KOMPUTE_PYTHON.
set(PYTHON_EXECUTABLE "$ENV{KOMPUTE_PYTHON}" CACHE FILEPATH "the Python to build for")
