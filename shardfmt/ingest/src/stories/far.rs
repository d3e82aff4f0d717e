//! Files that lie far away: fetched once where that matters, and never taken for damaged when they are out of reach.

use std::io::ErrorKind;
use std::sync::Arc;

use arrow::array::Int64Array;

use super::*;

/// A file that can be read until a number of its bytes were given out.
#[derive(Clone, Debug)]
struct Far {
    bytes: bytes::Bytes,
    given: Arc<AtomicU64>,
    most: u64,
    then: ErrorKind,
}

impl Far {
    fn new(bytes: &[u8], most: u64, then: ErrorKind) -> Far {
        Far { bytes: bytes.to_vec().into(), given: Arc::default(), most, then }
    }

    fn inputs(&self, name: &str) -> Inputs {
        let path = format!("far://away/{name}");
        let file = InputFile::new(path, name, self.bytes.len() as u64, "tag", Arc::new(self.clone()));
        Inputs::of_files("far://away", vec![file], true, None).unwrap()
    }
}

impl Content for Far {
    fn open(&self) -> io::Result<Arc<dyn ReadAt>> {
        Ok(Arc::new(self.clone()))
    }

    fn is_near(&self) -> bool {
        false
    }
}

impl ReadAt for Far {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let length = buffer.len().min(1000);
        let read = self.bytes.read_at(&mut buffer[..length], offset)?;
        match self.given.fetch_add(read as u64, Ordering::SeqCst) + read as u64 {
            given if given <= self.most => Ok(read),
            _ => Err(io::Error::new(self.then, "the line is dead; mend it")),
        }
    }
}

/// A file of each kind that is a single file.
fn kinds() -> [(&'static str, Vec<u8>); 3] {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("numbers.parquet");
    let numbers: Int64Array = (0..5000i64).map(|number| number * number).collect();
    let column: arrow::array::ArrayRef = Arc::new(numbers);
    write_parquet(path.clone(), &RecordBatch::try_from_iter([("number", column)]).unwrap());
    let lines: String = (0..5000).map(|number| format!("{number},w{number}\n")).collect();
    let images: Vec<(String, Vec<u8>)> =
        (0..40).map(|number| (format!("{}/{number}.png", number % 2), png(number))).collect();
    let images: Vec<(&str, Vec<u8>)> =
        images.iter().map(|(name, bytes)| (name.as_str(), bytes.clone())).collect();
    [
        ("numbers.parquet", fs::read(path).unwrap()),
        ("lines.csv", format!("number,word\n{lines}").into_bytes()),
        ("images.tar", tar(&images)),
    ]
}

fn version(inputs: Inputs, config: &IngestConfig) -> Result<shardfmt::VersionId, IngestError> {
    let source = Source::new(inputs, config)?;
    Ok(ingest(source, config, &Resources::threads(2), &Kept::default(), &NoProgress)?.manifest.id())
}

#[test]
fn what_lies_far_away_makes_the_version_it_makes_here() {
    for (name, bytes) in kinds() {
        let far = Far::new(&bytes, u64::MAX, ErrorKind::Other);
        let here = version(Inputs::in_memory(name, bytes.clone()), &sequential()).unwrap();
        assert_eq!(version(far.inputs(name), &sequential()).unwrap(), here, "{name}");
        let given = far.given.load(Ordering::SeqCst);
        // Its beginning, the footer; tables as text are read for their types and for their rows.
        let passes = if name.ends_with("csv") { 2 } else { 1 };
        assert!(given <= passes * bytes.len() as u64 + 4096, "{name}: {given} of {}", bytes.len());
    }
}

#[test]
fn what_is_out_of_reach_or_changes_is_not_skipped_as_damaged() {
    let skip = IngestConfig { on_error: OnError::Skip, ..sequential() };
    for (name, bytes) in kinds() {
        for most in [0, bytes.len() as u64 / 2] {
            let lost = Far::new(&bytes, most, ErrorKind::ConnectionRefused);
            let error = version(lost.inputs(name), &skip).unwrap_err();
            assert_eq!(error.to_string(), format!("far://away/{name}: cannot be fetched"));
            assert_eq!(error.source().unwrap().to_string(), "the line is dead; mend it");
            let changed = Far::new(&bytes, most, ErrorKind::StaleNetworkFileHandle);
            let error = version(changed.inputs(name), &skip).unwrap_err().to_string();
            assert!(error.starts_with(&format!("far://away/{name}: changed while it was read")), "{error}");
        }
    }
}
