//! Bounds of files for the crate `tokenizers`, which has none: how much memory a file claims, and how much longer its steps
//! make a text.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

/// The steps of real files make a text a few thousand times longer at worst; a step of 50 bytes can double it.
const MOST_GROWTH: usize = 1 << 16;

/// Growth of normal forms: U+FDFA of 3 bytes becomes 33.
const COMPOSED: usize = 11;

/// Checks the steps of a file before and after its model.
///
/// # Errors
///
/// If a table is larger than its file, or the steps may make a text too long, with the reason.
pub(super) fn check(file: &Value) -> Result<(), String> {
    let before = growth(&file["normalizer"])?.saturating_mul(growth(&file["pre_tokenizer"])?);
    for (part, growth) in [("normalizer and pre-tokenizer", before), ("decoder", growth(&file["decoder"])?)] {
        if growth > MOST_GROWTH {
            return Err(format!("its {part} may make a text more than {MOST_GROWTH} times longer"));
        }
    }
    Ok(())
}

/// How many times longer than its input the output of a step may be.
fn growth(step: &Value) -> Result<usize, String> {
    let text = |key: &str| step[key].as_str().unwrap_or_default().len();
    Ok(match step["type"].as_str().unwrap_or_default() {
        "Sequence" => {
            let steps =
                ["normalizers", "pretokenizers", "decoders"].iter().filter_map(|key| step[key].as_array());
            let mut product = 1usize;
            for step in steps.flatten() {
                product = product.saturating_mul(growth(step)?);
            }
            product
        }
        "ByteLevel" | "Lowercase" => 2,
        "Replace" => match step["pattern"]["String"].as_str() {
            Some(pattern) if !pattern.is_empty() => text("content").div_ceil(pattern.len()).max(1),
            // A regex may match nothing, before each character.
            _ => 1 + text("content"),
        },
        "Prepend" => 1 + text("prepend"),
        "Metaspace" => 1 + text("replacement").max(text("str_rep")),
        "NFC" | "NFD" | "NFKC" | "NFKD" | "BertNormalizer" => COMPOSED,
        "Precompiled" => precompiled(step["precompiled_charsmap"].as_str().unwrap_or_default())?,
        _ => 1,
    })
}

/// The growth of a table: the number of its bytes, its trie, and texts that end with 0.
fn precompiled(table: &str) -> Result<usize, String> {
    let broken = || "its precompiled_charsmap is cut off".to_owned();
    let table = STANDARD.decode(table).map_err(|_| broken())?;
    let (length, rest) = table.split_first_chunk().ok_or_else(broken)?;
    let texts = rest.get(u32::from_le_bytes(*length) as usize..).ok_or_else(broken)?;
    Ok(1 + texts.split(|&byte| byte == 0).map(<[u8]>::len).max().unwrap_or(0))
}
