/* The types Identity and UserLabels: the published form of a span and of a user's labels, encoded once. */
#include "public_compat.h"
#include "publisher.h"

#include <string.h>

bool user_labels_exist;      /* GIL */
static uint64_t last_serial; /* GIL */

static void to_hex(char *text, const uint8_t *bytes, size_t size)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < size; i++) {
        text[2 * i] = digits[bytes[i] >> 4];
        text[2 * i + 1] = digits[bytes[i] & 15];
    }
}

Identity *identity_new(PyTypeObject *type, const encoded_span *ids)
{
    Identity *made = (Identity *)type->tp_alloc(type, 0);
    if (made != NULL) {
        made->bytes = *ids;
        made->bytes.serial = ++last_serial;
        to_hex(made->bytes.trace_hex, ids->trace_id, TRACE_ID_BYTES);
        to_hex(made->bytes.span_hex, ids->span_id, SPAN_ID_BYTES);
        to_hex(made->bytes.local_root_hex, ids->local_root_id, SPAN_ID_BYTES);
    }
    return made;
}

/* Readers drop a sample in which one of the ids is zero. */
static int id_to_bytes(const char *name, PyObject *number, uint8_t *bytes, size_t size)
{
    static const uint8_t zero[TRACE_ID_BYTES];
    if (compat_int_to_bytes(number, bytes, (Py_ssize_t)size) != 0) {
        if (!PyErr_ExceptionMatches(PyExc_TypeError)) {
            PyErr_Format(PyExc_ValueError, "%s must be from 1 to 2**%zu - 1", name, 8 * size);
        }
        return -1;
    }
    if (memcmp(bytes, zero, size) == 0) {
        PyErr_Format(PyExc_ValueError, "%s must not be zero", name);
        return -1;
    }
    return 0;
}

static PyObject *identity_tp_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"trace_id", "span_id", "local_root_id", "trace_flags", NULL};
    PyObject *trace_id, *span_id, *local_root_id;
    int flags;
    encoded_span ids;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOi:Identity", names, &trace_id, &span_id, &local_root_id,
                                     &flags)) {
        return NULL;
    }
    if (id_to_bytes("trace_id", trace_id, ids.trace_id, TRACE_ID_BYTES) != 0
        || id_to_bytes("span_id", span_id, ids.span_id, SPAN_ID_BYTES) != 0
        || id_to_bytes("local_root_id", local_root_id, ids.local_root_id, SPAN_ID_BYTES) != 0) {
        return NULL;
    }
    if (flags < 0 || flags > 255) {
        return PyErr_Format(PyExc_ValueError, "trace_flags must be from 0 to 255, not %d", flags);
    }
    ids.trace_flags = (uint8_t)flags;
    return (PyObject *)identity_new(type, &ids);
}

/* The types have no subclasses. So this also accepts those of an earlier import of the module, which are laid out
 * alike. */
bool is_identity(PyObject *object)
{
    return Py_TYPE(object)->tp_new == identity_tp_new;
}

static PyObject *identity_local_root_id(Identity *self, void *Py_UNUSED(closure))
{
    return compat_int_from_bytes(self->bytes.local_root_id, SPAN_ID_BYTES);
}

/* Applications copy and pickle spans and contexts. There the attribute is False, in a process without this module too:
 * publishing identifies such a span anew, since its local root may be another one. */
static PyObject *identity_reduce(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored))
{
    return Py_BuildValue("O()", &PyBool_Type);
}

static PyMethodDef identity_methods[] = {
    {"__reduce__", identity_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef identity_properties[] = {
    {"local_root_id", (getter)identity_local_root_id, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot identity_slots[] = {
    {Py_tp_doc, "The published form of one span."},
    {Py_tp_new, identity_tp_new},
    {Py_tp_methods, identity_methods},
    {Py_tp_getset, identity_properties},
    {0, NULL},
};

PyType_Spec identity_spec = {
    .name = "splunk_profiler._context.Identity",
    .basicsize = sizeof(Identity),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = identity_slots,
};

static int copy_text(const char *subject, const char *text, Py_ssize_t length, char *bytes, Py_ssize_t max_length)
{
    if (length > max_length) {
        PyErr_Format(PyExc_ValueError, "%s has %zd bytes, readers take %zd", subject, length, max_length);
        return -1;
    }
    memcpy(bytes, text, (size_t)length);
    return 0;
}

/* What readers drop or cut has been dropped or cut by user_labels/labels.py. */
static int pair_to_label(PyObject *pair, encoded_label *label)
{
    const char *key, *value;
    Py_ssize_t key_length, value_length;
    if (!PyArg_ParseTuple(pair, "y#y#:UserLabels", &key, &key_length, &value, &value_length)) {
        return -1;
    }
    if (copy_text("the key of a label", key, key_length, label->key, LABEL_KEY_BYTES) != 0
        || copy_text("the value of a label", value, value_length, label->value, LABEL_VALUE_BYTES) != 0) {
        return -1;
    }
    label->key_length = (uint8_t)key_length;
    label->value_length = (uint8_t)value_length;
    return 0;
}

static PyObject *user_labels_tp_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"pairs", NULL};
    PyObject *pairs;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!:UserLabels", names, &PyTuple_Type, &pairs)) {
        return NULL;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(pairs);
    if (count > MAX_USER_LABELS) {
        return PyErr_Format(PyExc_ValueError, "at most %d labels, not %zd", MAX_USER_LABELS, count);
    }
    UserLabels *made = (UserLabels *)type->tp_alloc(type, count);
    if (made == NULL) {
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        if (pair_to_label(PyTuple_GET_ITEM(pairs, i), &made->labels[i]) != 0) {
            goto error;
        }
    }
    made->bytes = (encoded_labels){++last_serial, made->labels, (size_t)count};
    user_labels_exist = true;
    return (PyObject *)made;
error:
    Py_DECREF(made);
    return NULL;
}

UserLabels *take_user_labels(PyObject *value)
{
    if (value != NULL && (Py_TYPE(value)->tp_new != user_labels_tp_new || Py_SIZE(value) == 0)) {
        Py_CLEAR(value);
    }
    return (UserLabels *)value;
}

static PyType_Slot user_labels_slots[] = {
    {Py_tp_doc, "The published form of one set of user labels."},
    {Py_tp_new, user_labels_tp_new},
    {0, NULL},
};

PyType_Spec user_labels_spec = {
    .name = "splunk_profiler._context.UserLabels",
    .basicsize = offsetof(UserLabels, labels),
    .itemsize = sizeof(encoded_label),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = user_labels_slots,
};
