-- True if all facts that an Admit needs are true.
i.same_server AND i.same_start AND i.writable AND i.running AND i.same_process AND i.same_database AND i.killable
