//! Event files of TensorBoard: the curves of a training, and the ids that lead from a curve to its data.
//!
//! A file is a row of `Event` messages (TensorFlow, `core/util/event.proto`) in the frames of TFRecord files. The messages are few and
//! flat, so they are encoded here, by the wire format of protocol buffers.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

use shardd_ingest::tfrecord_frame;
use shardd_trainer::train::Progress;

/// The most steps of a training that have values of their own; of more steps, some are left out.
const MOST_STEPS: u64 = 10_000;
/// The version of event files that TensorBoard reads (`EventsWriter`).
const VERSION: &str = "brain.Event:2";

/// Where the curves of a training are logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LogTo {
    /// Event files of TensorBoard in this directory, under the name of the run.
    TensorBoard(PathBuf),
}

impl FromStr for LogTo {
    type Err = String;

    fn from_str(text: &str) -> Result<LogTo, String> {
        match text.split_once(':') {
            Some(("tensorboard", directory)) if !directory.is_empty() => {
                Ok(LogTo::TensorBoard(directory.into()))
            }
            _ => Err("use tensorboard:DIR".to_owned()),
        }
    }
}

/// An event file that is being written. Each step is on the disk before the next one is trained.
pub(crate) struct EventFile {
    file: File,
    /// Whether this process has logged a step.
    has_begun: bool,
}

impl EventFile {
    /// A new file for a run. TensorBoard reads all files of a directory: that of a training that resumes continues the ones before it.
    ///
    /// # Errors
    /// If the directory or the file cannot be made.
    pub(crate) fn create(directory: &Path, run: &str) -> io::Result<EventFile> {
        let directory = directory.join(run);
        fs::create_dir_all(&directory)?;
        let name = format!("events.out.tfevents.{:010}.shardtrain.{}", now().as_secs(), std::process::id());
        let file = File::create(directory.join(name))?;
        let mut events = EventFile { file, has_begun: false };
        events.write(&event(0, &text(3, VERSION)))?;
        Ok(events)
    }

    /// Notes the ids of the run, its plan and its version, as texts.
    pub(crate) fn describe(&mut self, facts: &[(&str, String)]) -> io::Result<()> {
        let values: Vec<u8> = facts.iter().flat_map(|(name, value)| text_value(name, value)).collect();
        self.write(&event(0, &bytes(5, &values)))
    }

    /// Logs a step, if it is one of those that have values.
    pub(crate) fn step(&mut self, progress: &Progress, epochs: u32) -> io::Result<()> {
        let step = u64::from(progress.epoch) * progress.steps + progress.step;
        let all = u64::from(epochs) * progress.steps;
        if !self.has_begun {
            self.has_begun = true;
            // The steps from here on replace those of a process that went further before it was killed.
            self.write(&event(step, &bytes(7, &varint_field(1, 1))))?;
        }
        let is_last = step + 1 == all;
        if !is_last && !step.is_multiple_of(all.div_ceil(MOST_STEPS).max(1)) {
            return Ok(());
        }
        let time = &progress.time;
        self.scalars(
            step,
            &[
                ("train/loss", progress.loss),
                ("train/accuracy", progress.accuracy),
                ("train/learning_rate", progress.rate.into()),
                ("train/gradient_norm", progress.gradient_norm),
                ("train/samples_per_second", progress.samples_per_s),
                ("train/skipped", f64::from(u8::from(progress.is_skipped))),
                ("seconds/waiting_for_data", time.wait_s),
                ("seconds/decoding", time.decode_s),
                ("seconds/computing", time.compute_s),
                ("seconds/waiting_for_ranks", time.reduce_s),
                ("seconds/updating", (time.update_s - time.reduce_s).max(0.0)),
            ],
        )
    }

    /// Logs values of a step.
    pub(crate) fn scalars(&mut self, step: u64, values: &[(&str, f64)]) -> io::Result<()> {
        let values: Vec<u8> =
            values.iter().flat_map(|(name, value)| scalar_value(name, *value as f32)).collect();
        self.write(&event(step, &bytes(5, &values)))
    }

    fn write(&mut self, event: &[u8]) -> io::Result<()> {
        self.file.write_all(&tfrecord_frame(event))
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

    #[test]
    fn a_place_is_a_kind_and_a_directory() {
        assert_eq!("tensorboard:a:b".parse(), Ok(LogTo::TensorBoard("a:b".into())));
        for wrong in ["tensorboard", "tensorboard:", "mlflow:x", ":x", ""] {
            assert_eq!(wrong.parse::<LogTo>(), Err("use tensorboard:DIR".to_owned()), "{wrong}");
        }
    }

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
