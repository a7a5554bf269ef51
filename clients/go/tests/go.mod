// Keeps the tests and their drivers out of the module. They are built with Debian's packages: see ../check.sh.
module fencegate.example/clients/go/tests

go 1.19
