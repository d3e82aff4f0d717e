//! Measures megabytes a second of one thread: `speed TOKENIZER FILE.docs [ROUNDS]`.
//!
//! FILE is one that `tests/reference/tokens.py pack` makes. Each round encodes all documents with a new encoder (`cold`), again
//! with the same one (`warm`), and with the crate `tokenizers` (`hf`, on a tenth of the documents; only with the feature
//! `fallback`, and for a `tokenizer.json`). The output has one line a round, in 10^6 bytes a second of processor time, so
//! that other programs of a busy machine count less; where the system does not tell it, of time.

use std::error::Error;
use std::time::Instant;
use std::{env, fs};

use shardd_tokens::{Encoding, Specials, Tokenizer};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [name, file, rest @ ..] = &arguments[..] else {
        return Err("usage: speed TOKENIZER FILE.docs [ROUNDS]".into());
    };
    let rounds = rest.first().map_or(Ok(3), |rounds| rounds.parse())?;
    let start = Instant::now();
    let tokenizer = match name.split_once('=') {
        Some((ranks, encoding)) => Tokenizer::from_ranks(&fs::read(ranks)?, encoding.parse::<Encoding>()?)?,
        None => Tokenizer::from_file(name)?,
    };
    println!("native {} opened in {:?}", tokenizer.is_native(), start.elapsed());
    let bytes = fs::read(file)?;
    let documents = split(&bytes)?;
    for _ in 0..rounds {
        let mut encoder = tokenizer.encoder();
        let mut encode = |documents: &[&str]| -> Result<usize, Box<dyn Error>> {
            let (mut ids, mut count) = (Vec::new(), 0);
            for document in documents {
                ids.clear();
                encoder.encode(document, &mut ids, Specials::TEXT)?;
                count += ids.len();
            }
            Ok(count)
        };
        let cold = measure(&documents, &mut encode)?;
        let warm = measure(&documents, &mut encode)?;
        println!("cold {cold:.1} warm {warm:.1} {}", foreign(name, &documents)?);
    }
    Ok(())
}

fn measure(
    documents: &[&str],
    mut encode: impl FnMut(&[&str]) -> Result<usize, Box<dyn Error>>,
) -> Result<f64, Box<dyn Error>> {
    let size: usize = documents.iter().map(|document| document.len()).sum();
    let (start, used) = (Instant::now(), processor_seconds());
    let tokens = encode(documents)?;
    let seconds = match (used, processor_seconds()) {
        (Some(before), Some(after)) => after - before,
        _ => start.elapsed().as_secs_f64(),
    };
    assert!(tokens <= size, "a token has at least one byte");
    Ok(size as f64 / seconds / 1e6)
}

/// The time that this thread has run, from Linux.
fn processor_seconds() -> Option<f64> {
    let numbers = fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let nanoseconds: f64 = numbers.split_whitespace().next()?.parse().ok()?;
    Some(nanoseconds / 1e9)
}

#[cfg(feature = "fallback")]
fn foreign(name: &str, documents: &[&str]) -> Result<String, Box<dyn Error>> {
    if !name.ends_with(".json") {
        return Ok(String::new());
    }
    let refused = |error: tokenizers::Error| -> Box<dyn Error> { error };
    let tokenizer = tokenizers::Tokenizer::from_file(name).map_err(refused)?;
    let tenth: Vec<_> = documents.iter().step_by(10).copied().collect();
    let speed = measure(&tenth, |documents| {
        let mut count = 0;
        for &document in documents {
            count += tokenizer.encode_fast(document, false).map_err(refused)?.len();
        }
        Ok(count)
    })?;
    Ok(format!("hf {speed:.2}"))
}

#[cfg(not(feature = "fallback"))]
fn foreign(_: &str, _: &[&str]) -> Result<String, Box<dyn Error>> {
    Ok(String::new())
}

fn split(mut bytes: &[u8]) -> Result<Vec<&str>, Box<dyn Error>> {
    let mut documents = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk::<8>() {
        let (document, rest) = rest.split_at(u64::from_le_bytes(*length) as usize);
        documents.push(std::str::from_utf8(document)?);
        bytes = rest;
    }
    Ok(documents)
}
