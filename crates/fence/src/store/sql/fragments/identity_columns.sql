-- The facts that an Admit needs, each to be reported.
i.same_server, i.same_start, i.writable, i.running, i.same_process, i.same_database, i.killable
