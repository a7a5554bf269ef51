//! The replies of a process: rows, tags, errors.

use super::{Answer, Diagnosis, Process};
use bytes::BufMut;
use fencegate_wire::frame::put_frame;
use fencegate_wire::tag::backend;

impl Process {
    pub(super) fn answer(&mut self, (rows, tag): Answer) {
        for row in rows {
            put_frame(&mut self.said, backend::DATA_ROW, |out| {
                out.put_i16(row.len() as i16);
                for column in &row {
                    match column {
                        Some(text) => {
                            out.put_i32(text.len() as i32);
                            out.put_slice(text.as_bytes());
                        }
                        None => out.put_i32(-1),
                    }
                }
            });
        }
        self.say(backend::COMMAND_COMPLETE, &[tag.as_bytes(), b"\0"].concat());
    }

    pub(super) fn ready(&mut self) {
        let status = match &self.transaction {
            None => b'I',
            Some(transaction) if transaction.failed => b'E',
            Some(_) => b'T',
        };
        let strings = if self.setting.plain_strings() { "on" } else { "off" };
        let changed = [("standard_conforming_strings", strings), ("search_path", self.path())];
        for (index, (name, value)) in changed.into_iter().enumerate() {
            let is_reported = index == 0 || self.world.plan.reports_path;
            if is_reported && std::mem::replace(&mut self.reported[index], value) != value {
                self.say(backend::PARAMETER_STATUS, format!("{name}\0{value}\0").as_bytes());
            }
        }
        self.say(backend::READY, &[status]);
        if status == b'I' {
            self.portals.clear();
        }
        self.flush();
    }

    pub(super) fn say_error(&mut self, Diagnosis { code, message, detail, is_fatal }: &Diagnosis) {
        let severity = if *is_fatal { "FATAL" } else { "ERROR" };
        let fields = [(b'S', severity), (b'V', severity), (b'C', code), (b'M', message), (b'D', detail)];
        put_frame(&mut self.said, backend::ERROR, |out| {
            for (tag, value) in fields.iter().filter(|(_, value)| !value.is_empty()) {
                out.put_u8(*tag);
                out.put_slice(value.as_bytes());
                out.put_u8(0);
            }
            out.put_u8(0);
        });
        // Like `send_message_to_frontend`.
        self.flush();
    }

    pub(super) fn say(&mut self, tag: u8, content: &[u8]) {
        put_frame(&mut self.said, tag, |out| out.put_slice(content));
    }

    pub(super) fn flush(&mut self) {
        self.output.write_all_of(&mut self.said);
    }
}
