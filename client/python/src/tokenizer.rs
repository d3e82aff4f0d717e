//! Tokens of texts, with the interpreter's lock released: the tokenizer of `shardctl ingest`.

use std::mem;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, Int64Array};
use arrow::datatypes::{DataType, Field};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::PyString;
use shardd_tokens::{EncodeError, Encoder, Encoding, Specials, Tokenizer as Tokens};

use crate::column::Column;
use crate::errors;

/// Bytes of texts that a thread encodes before it looks for others: fewer are not worth another thread.
const PART_BYTES: usize = 64 << 10;
/// How often a call looks for signals.
const SIGNALS_EVERY: Duration = Duration::from_millis(50);

/// A tokenizer, for any number of threads.
#[pyclass(frozen, module = "shardd._native")]
pub(crate) struct Tokenizer {
    tokens: Tokens,
    /// Encoders between two calls: their caches are much of the speed.
    idle: Mutex<Vec<Encoder>>,
}

#[pymethods]
impl Tokenizer {
    /// Of the bytes of a `tokenizer.json`, or of ranks of tiktoken. `encoding` is the encoding of ranks, if they do not show it.
    ///
    /// # Errors
    /// A file that is neither, and an encoding that there is not.
    #[new]
    #[pyo3(signature = (file, encoding=None))]
    fn new(py: Python<'_>, file: PyBackedBytes, encoding: Option<&str>) -> PyResult<Self> {
        let encoding = encoding.map(str::parse::<Encoding>).transpose();
        let encoding = encoding.map_err(|error| errors::value(&error))?;
        let tokens = py.detach(|| match encoding {
            Some(encoding) => Tokens::from_ranks(&file, encoding),
            None => Tokens::from_bytes(&file),
        });
        Ok(Self { tokens: tokens.map_err(|error| errors::value(&error))?, idle: Mutex::default() })
    }

    /// One more than the largest id.
    #[getter]
    fn vocab_size(&self) -> usize {
        self.tokens.vocabulary_size()
    }

    /// The tokens of a text. `template` adds those that the tokenizer puts around a text, and `parse` finds special tokens in it.
    ///
    /// # Errors
    /// A text that is no UTF-8, or too long.
    fn encode(
        &self,
        py: Python<'_>,
        text: &Bound<'_, PyAny>,
        template: bool,
        parse: bool,
    ) -> PyResult<Vec<u32>> {
        let text = text_of(text, None)?;
        py.detach(|| {
            let (mut encoder, mut ids) = (self.encoder(), Vec::new());
            let encoded = encoder.encode(&text, &mut ids, Specials { parse, template });
            self.keep(encoder);
            encoded.map(|()| ids).map_err(|error| errors::value(&error))
        })
    }

    /// The tokens of texts, one after the other, and where those of each begin and the last ones end: both int64. The result does
    /// not depend on the number of threads.
    ///
    /// # Errors
    /// A text that is no UTF-8, or too long, with its number; and of a signal.
    fn encode_batch(
        &self,
        py: Python<'_>,
        texts: Vec<Bound<'_, PyAny>>,
        template: bool,
        parse: bool,
        threads: Option<usize>,
    ) -> PyResult<(Column, Column)> {
        let texts = texts.iter().enumerate().map(|(number, text)| text_of(text, Some(number)));
        let texts: Vec<PyBackedStr> = texts.collect::<PyResult<_>>()?;
        let specials = Specials { parse, template };
        let encoded = py.detach(|| self.encode_all(&texts, specials, threads.unwrap_or_else(processors)))?;
        Ok((column("values", encoded.values), column("offsets", encoded.offsets)))
    }

    /// The bytes of tokens, one after another; special tokens with their text.
    ///
    /// # Errors
    /// An id that is not in the vocabulary.
    fn decode(&self, ids: Vec<u32>) -> PyResult<Vec<u8>> {
        self.tokens.decode(&ids).map_err(|error| errors::value(&error))
    }
}

/// The tokens of a batch.
struct Encoded {
    values: Vec<i64>,
    offsets: Vec<i64>,
}

/// The tokens of consecutive texts.
struct Part {
    number: usize,
    ids: Vec<u32>,
    lengths: Vec<usize>,
}

impl Tokenizer {
    /// Never waits: after a fork, a lock of another thread stays locked.
    fn encoder(&self) -> Encoder {
        let kept = self.idle.try_lock().ok().and_then(|mut idle| idle.pop());
        kept.unwrap_or_else(|| self.tokens.encoder())
    }

    fn keep(&self, encoder: Encoder) {
        match self.idle.try_lock() {
            Ok(mut idle) if idle.len() < processors() => idle.push(encoder),
            Ok(_) | Err(TryLockError::WouldBlock | TryLockError::Poisoned(_)) => {}
        }
    }

    fn encode_all(&self, texts: &[PyBackedStr], specials: Specials, threads: usize) -> PyResult<Encoded> {
        let parts = parts(texts.iter().map(|text| text.len()));
        let work = Work {
            texts,
            parts: &parts,
            specials,
            next: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
        };
        let threads = threads.clamp(1, parts.len().max(1));
        let done = thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|_| scope.spawn(|| self.work(&work, || Ok(())))).collect();
            let mut looked = Instant::now();
            // The calling thread may be the one that receives signals.
            let own = self.work(&work, || {
                if looked.elapsed() < SIGNALS_EVERY {
                    return Ok(());
                }
                looked = Instant::now();
                Python::attach(|py| py.check_signals())
            });
            let others = others.into_iter().map(|other| other.join());
            let others = others.map(|done| done.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            std::iter::once(own).chain(others).collect::<PyResult<Vec<_>>>()
        })?;
        let mut done: Vec<Part> = done.into_iter().flatten().collect();
        done.sort_unstable_by_key(|part| part.number);
        let count = done.iter().map(|part| part.ids.len()).sum();
        let (mut values, mut offsets) = (Vec::with_capacity(count), Vec::with_capacity(texts.len() + 1));
        offsets.push(0);
        for Part { ids, lengths, .. } in done {
            let mut end = values.len();
            for length in lengths {
                end += length;
                offsets.push(end as i64);
            }
            values.extend(ids.into_iter().map(i64::from));
        }
        Ok(Encoded { values, offsets })
    }

    /// Encodes parts until none is left. `check` may end the work of all threads.
    fn work(&self, work: &Work<'_>, mut check: impl FnMut() -> PyResult<()>) -> PyResult<Vec<Part>> {
        let mut encoder = self.encoder();
        let mut done = Vec::new();
        while let Some((number, texts)) = work.take() {
            let part = work.encode(&mut encoder, number, texts);
            match part.and_then(|part| check().map(|()| part)) {
                Ok(part) => done.push(part),
                Err(error) => {
                    work.is_over.store(true, Ordering::Relaxed);
                    return Err(error);
                }
            }
        }
        self.keep(encoder);
        Ok(done)
    }
}

/// The texts of a batch, for several threads.
struct Work<'t> {
    texts: &'t [PyBackedStr],
    parts: &'t [Range<usize>],
    specials: Specials,
    /// The part that the next thread takes.
    next: AtomicUsize,
    is_over: AtomicBool,
}

impl Work<'_> {
    fn take(&self) -> Option<(usize, Range<usize>)> {
        if self.is_over.load(Ordering::Relaxed) {
            return None;
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        Some((number, self.parts.get(number)?.clone()))
    }

    fn encode(&self, encoder: &mut Encoder, number: usize, texts: Range<usize>) -> PyResult<Part> {
        let (mut ids, mut lengths) = (Vec::new(), Vec::with_capacity(texts.len()));
        for text in texts {
            let start = ids.len();
            let refused = |error: EncodeError| {
                PyValueError::new_err(format!("text {text}: {}", errors::message(&error)))
            };
            encoder.encode(&self.texts[text], &mut ids, self.specials).map_err(refused)?;
            lengths.push(ids.len() - start);
        }
        Ok(Part { number, ids, lengths })
    }
}

/// Consecutive texts of about [`PART_BYTES`] in all, or a single longer one.
fn parts(lengths: impl Iterator<Item = usize>) -> Vec<Range<usize>> {
    let (mut parts, mut start, mut bytes, mut end) = (Vec::new(), 0, 0, 0);
    for length in lengths {
        bytes += length;
        end += 1;
        if bytes >= PART_BYTES {
            parts.push(mem::replace(&mut start, end)..end);
            bytes = 0;
        }
    }
    if start < end {
        parts.push(start..end);
    }
    parts
}

fn text_of(text: &Bound<'_, PyAny>, number: Option<usize>) -> PyResult<PyBackedStr> {
    let name = || number.map_or_else(|| "the text".to_owned(), |number| format!("text {number}"));
    let Ok(string) = text.cast::<PyString>() else {
        let kind = text.get_type().name()?;
        return Err(PyTypeError::new_err(format!("{} is a {kind}; give a str", name())));
    };
    PyBackedStr::try_from(string.clone()).map_err(|_| {
        PyValueError::new_err(format!(
            "{} has half of a surrogate pair, which is no character; make it with errors=\"replace\"",
            name()
        ))
    })
}

fn column(name: &str, numbers: Vec<i64>) -> Column {
    let numbers: ArrayRef = Arc::new(Int64Array::from(numbers));
    Column::new(&Arc::new(Field::new(name, DataType::Int64, false)), &numbers)
}

fn processors() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}
