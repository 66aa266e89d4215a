# make demo    set up .venv, install, and stream a story from the embedded model
# make test    set up .venv with the development extras and run the whole suite
# make native  build the extension in place for development (PYTHON=... picks the interpreter and its tools)

PYTHON ?= $(if $(wildcard .venv/bin/python),.venv/bin/python,python3)
BUILD ?= build/native

.PHONY: native
native:
	@PATH="$(dir $(abspath $(shell command -v $(PYTHON)))):$$PATH"; \
	test -f $(BUILD)/build.ninja || cmake -S . -B $(BUILD) -G Ninja -DFLYWEIGHT_WERROR=ON \
		-DPython_EXECUTABLE="$$(command -v $(PYTHON))"; \
	cmake --build $(BUILD) && rm -f src/flyweight/_native*.so && cp $(BUILD)/_native*.so src/flyweight/
