module fencegate.example/clients/go

go 1.19
