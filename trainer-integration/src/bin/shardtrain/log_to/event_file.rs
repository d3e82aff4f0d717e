//! Event files of TensorBoard: the curves of a training, and the ids that lead from a curve to its data.
//!
//! A file is a row of `Event` messages (TensorFlow, `core/util/event.proto`) in the frames of TFRecord files. The messages are few and
//! flat, so they are encoded here, by the wire format of protocol buffers.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;
use shardd_ingest::tfrecord_frame;

use super::{Ending, Facts, RunLogger};

/// The version of event files that TensorBoard reads (`EventsWriter`).
const VERSION: &str = "brain.Event:2";

/// An event file that is being written. Each step is on the disk before the next one is trained.
pub(super) struct EventFile {
    file: File,
    /// Facts to write before the next step.
    facts: Option<Facts>,
}

impl EventFile {
    /// A new file for a run. TensorBoard reads all files of a directory: that of a training that resumes continues the ones before it.
    ///
    /// # Errors
    /// If the directory or the file cannot be made.
    pub(super) fn create(directory: &Path, run: &str) -> io::Result<EventFile> {
        let directory = directory.join(run);
        fs::create_dir_all(&directory)?;
        let name = format!("events.out.tfevents.{:010}.shardtrain.{}", now().as_secs(), std::process::id());
        let file = File::create(directory.join(name))?;
        let mut events = EventFile { file, facts: None };
        events.write(&event(0, &text(3, VERSION)))?;
        Ok(events)
    }

    /// Keeps facts to write with the next step.
    pub(super) fn note(&mut self, facts: &Facts) {
        self.facts.get_or_insert_default().extend(facts.clone());
    }

    fn write(&mut self, event: &[u8]) -> io::Result<()> {
        self.file.write_all(&tfrecord_frame(event))
    }
}

impl RunLogger for EventFile {
    fn describe(&mut self, facts: &Facts) -> io::Result<()> {
        self.note(facts);
        Ok(())
    }

    fn scalars(&mut self, step: u64, values: &[(&str, f64)]) -> io::Result<()> {
        if let Some(facts) = self.facts.take() {
            // The steps from here on replace those of a process that went further before it was killed. TensorBoard then drops all that
            // it has read of these steps, so the facts follow.
            self.write(&event(step, &bytes(7, &varint_field(1, 1))))?;
            let texts = facts.iter().flat_map(|(name, value)| match value {
                Value::String(value) => text_value(name, value),
                value => text_value(name, &value.to_string()),
            });
            self.write(&event(0, &bytes(5, &texts.collect::<Vec<u8>>())))?;
        }
        let values: Vec<u8> =
            values.iter().flat_map(|(name, value)| scalar_value(name, *value as f32)).collect();
        self.write(&event(step, &bytes(5, &values)))
    }

    /// Every event is in the file already.
    fn end(&mut self, _: Ending) -> io::Result<()> {
        Ok(())
    }
}

fn now() -> std::time::Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// `Event { wall_time = 1, step = 2, ... }`.
fn event(step: u64, content: &[u8]) -> Vec<u8> {
    let mut event = vec![1 << 3 | 1];
    event.extend(now().as_secs_f64().to_le_bytes());
    event.extend(varint_field(2, step));
    event.extend(content);
    event
}

/// `Summary { value = 1 { tag = 1, simple_value = 2 } }`.
fn scalar_value(name: &str, value: f32) -> Vec<u8> {
    let mut content = text(1, name);
    content.push(2 << 3 | 5);
    content.extend(value.to_le_bytes());
    bytes(1, &content)
}

/// `Summary { value = 1 { tag = 1, metadata = 9 { plugin_data = 1 { plugin_name = 1 } },
/// tensor = 8 { dtype = 1, tensor_shape = 2 { dim = 2 { size = 1 } }, string_val = 8 } } }`.
fn text_value(name: &str, value: &str) -> Vec<u8> {
    const DT_STRING: u64 = 7;
    let tensor =
        [varint_field(1, DT_STRING), bytes(2, &bytes(2, &varint_field(1, 1))), text(8, value)].concat();
    let metadata = bytes(1, &text(1, "text"));
    bytes(1, &[text(1, name), bytes(9, &metadata), bytes(8, &tensor)].concat())
}

/// A field of whole numbers.
fn varint_field(number: u64, value: u64) -> Vec<u8> {
    [varint(number << 3), varint(value)].concat()
}

/// A field of bytes or a message.
fn bytes(number: u64, content: &[u8]) -> Vec<u8> {
    [varint(number << 3 | 2), varint(content.len() as u64), content.to_vec()].concat()
}

fn text(number: u64, content: &str) -> Vec<u8> {
    bytes(number, content.as_bytes())
}

/// Seven bits a byte, the lowest first.
fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the encoding that protoc gives for the same messages.
    #[test]
    fn messages_are_those_of_protocol_buffers() {
        assert_eq!(varint(300), [0xac, 0x02]);
        assert_eq!(scalar_value("a", 1.0), [0x0a, 8, 0x0a, 1, b'a', 0x15, 0, 0, 0x80, 0x3f]);
        let found = text_value("n", "v");
        let wanted = [
            &[0x0a, 26, 0x0a, 1, b'n'][..],
            &[0x4a, 8, 0x0a, 6, 0x0a, 4, b't', b'e', b'x', b't'],
            &[0x42, 11, 0x08, 7, 0x12, 4, 0x12, 2, 0x08, 1, 0x42, 1, b'v'],
        ];
        assert_eq!(found, wanted.concat());
        let event = event(5, &[]);
        assert_eq!((event[0], &event[9..]), (0x09, &[0x10, 5][..]));
    }
}
