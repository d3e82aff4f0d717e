//! Writes the tokens of files: the other half of `tests/reference/tokens.py`.
//!
//! `encode TOKENIZER MODE FILE OUT`, with the mode `text`, `parse` or `all` for special tokens, or `offsets`. FILE has
//! documents, each with its length in bytes before it, as a 64-bit little-endian number. OUT gets for each document the
//! count of its tokens as 64 bits and their ids as 32 bits each; with `offsets` three numbers a token: id, start, end.
//! A rank file may have the name of its encoding behind it: `FILE=cl100k_base`.

use std::error::Error;
use std::time::Instant;
use std::{env, fs};

use shardd_tokens::{Encoding, Specials, Tokenizer};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [tokenizer, mode, documents, out] = &arguments[..] else {
        return Err("usage: encode TOKENIZER text|parse|all|offsets FILE OUT".into());
    };
    let tokenizer = open(tokenizer)?;
    println!("native: {}, {:?}", tokenizer.is_native(), tokenizer.fallback_reason());
    let bytes = fs::read(documents)?;
    let documents = split(&bytes)?;
    let mut encoder = tokenizer.encoder();
    let mut written = Vec::new();
    let start = Instant::now();
    for document in documents {
        let (mut ids, mut offsets) = (Vec::new(), Vec::new());
        match &mode[..] {
            "text" => encoder.encode(document, &mut ids, Specials::TEXT)?,
            "parse" => encoder.encode(document, &mut ids, Specials::PARSE)?,
            "all" => encoder.encode(document, &mut ids, Specials::PARSE_AND_TEMPLATE)?,
            _ => {
                encoder.encode_with_offsets(
                    document,
                    &mut ids,
                    &mut offsets,
                    Specials::PARSE_AND_TEMPLATE,
                )?;
            }
        }
        written.extend_from_slice(&(ids.len() as u64).to_le_bytes());
        for (place, id) in ids.iter().enumerate() {
            written.extend_from_slice(&id.to_le_bytes());
            if let Some(range) = offsets.get(place) {
                written.extend_from_slice(&(range.start as u32).to_le_bytes());
                written.extend_from_slice(&(range.end as u32).to_le_bytes());
            }
        }
    }
    println!("{} bytes in {:?}", bytes.len(), start.elapsed());
    fs::write(out, written)?;
    Ok(())
}

fn open(name: &str) -> Result<Tokenizer, Box<dyn Error>> {
    match name.split_once('=') {
        Some((file, encoding)) => Ok(Tokenizer::from_ranks(&fs::read(file)?, encoding.parse::<Encoding>()?)?),
        None => Ok(Tokenizer::from_file(name)?),
    }
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
