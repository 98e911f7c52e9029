/* Loaded into a Python process, runs the program that it ran once more in another initialization of the interpreter: when
 * the first has been finalized and the process exits. */
#include <Python.h>

#include <stdio.h>
#include <stdlib.h>

static wchar_t *program, *script;

static void run_again(void)
{
    PyConfig config;
    PyConfig_InitPythonConfig(&config);
    config.parse_argv = 0;
    PyConfig_SetString(&config, &config.program_name, program);
    PyConfig_SetString(&config, &config.run_filename, script);
    PyStatus status = Py_InitializeFromConfig(&config);
    PyConfig_Clear(&config);
    if (PyStatus_Exception(status)) {
        printf("not initialized again: %s\n", status.err_msg);
        return;
    }
    int code = Py_RunMain();
    printf("second initialization %d\n", code);
    fflush(stdout);
}

void begin(const char *program_name, const char *script_name)
{
    if (program == NULL) {
        program = Py_DecodeLocale(program_name, NULL);
        script = Py_DecodeLocale(script_name, NULL);
        atexit(run_again);
    }
}
