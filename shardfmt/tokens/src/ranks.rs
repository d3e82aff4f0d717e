//! Rank files of tiktoken, and the encodings that they belong to.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::added::AddedToken;
use crate::error::FileError;
use crate::json::template::Template;
use crate::merges::{MAX_ID, Merge};
use crate::native::{Core, Parts};
use crate::scan::{Pattern, Splitter};
use crate::vocabulary::Vocabulary;

/// An encoding with a name: the pattern and the special tokens that its rank file lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Encoding {
    /// GPT-2 and GPT-3, also called `gpt2`.
    R50kBase,
    /// Codex.
    P50kBase,
    /// GPT-3.5 and GPT-4.
    Cl100kBase,
    /// GPT-4o and later.
    O200kBase,
    /// gpt-oss: the ranks of o200k_base with the tokens of the harmony format.
    O200kHarmony,
    /// Llama 3 to 3.3, with the special tokens of 3.1.
    Llama3,
    /// Qwen 1 to Qwen 3, with the three special tokens that all of them have. Text is brought into form C.
    Qwen2,
}

/// The parts of an encoding that its rank file lacks.
#[derive(Clone, Debug)]
pub struct Ranks {
    /// How text is cut into words.
    pub pattern: Pattern,
    /// Whether text is brought into normalization form C first.
    pub compose: bool,
    /// Special tokens, with ids that the file does not use.
    pub special_tokens: Vec<AddedToken>,
    /// The token before each text, where [`Specials`](crate::Specials) wants the template.
    pub begin: Option<u32>,
}

/// A name that is no encoding.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no encoding is called {name:?}; there are {}", Encoding::names())]
pub struct UnknownEncoding {
    name: String,
}

/// How many tokens a rank file has, and their [`digest`].
type Fingerprint = (usize, u64);

/// Encodings, their names, and the fingerprints of their rank files. One of two with the same file has none.
const KNOWN: [(Encoding, &str, Option<Fingerprint>); 7] = [
    (Encoding::R50kBase, "r50k_base", Some((50_256, 0xbbf3_327e_6374_98f2))),
    (Encoding::P50kBase, "p50k_base", Some((50_280, 0x0fb8_c76b_77ad_724a))),
    (Encoding::Cl100kBase, "cl100k_base", Some((100_256, 0x6601_ccc2_5982_de24))),
    (Encoding::O200kBase, "o200k_base", Some((199_998, 0x8235_6ec1_651e_ea3c))),
    (Encoding::O200kHarmony, "o200k_harmony", None),
    (Encoding::Llama3, "llama3", Some((128_000, 0xc558_8a34_dc05_ba0e))),
    (Encoding::Qwen2, "qwen2", Some((151_643, 0xd4cb_5d29_5dec_9da9))),
];

impl Encoding {
    /// The name of this encoding, which `parse` understands.
    #[must_use]
    pub fn name(self) -> &'static str {
        KNOWN.iter().find(|(encoding, ..)| *encoding == self).map_or("", |(_, name, _)| name)
    }

    /// All names, for messages.
    pub(crate) fn names() -> String {
        KNOWN.map(|(_, name, _)| name).join(", ")
    }

    /// The encoding whose rank file has these tokens.
    fn of(tokens: &[(u32, Vec<u8>)]) -> Option<Self> {
        let fingerprint = Some((tokens.len(), digest(tokens)));
        KNOWN.into_iter().find(|(.., known)| *known == fingerprint).map(|(encoding, ..)| encoding)
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Encoding {
    type Err = UnknownEncoding;

    fn from_str(name: &str) -> Result<Self, UnknownEncoding> {
        let name = if name == "gpt2" { "r50k_base" } else { name };
        let known = KNOWN.into_iter().find(|(_, known, _)| *known == name);
        known.map(|(encoding, ..)| encoding).ok_or_else(|| UnknownEncoding { name: name.to_owned() })
    }
}

impl From<Encoding> for Ranks {
    fn from(encoding: Encoding) -> Self {
        let (pattern, special_tokens) = match encoding {
            Encoding::R50kBase | Encoding::P50kBase => {
                (Pattern::Gpt2, vec![("<|endoftext|>".into(), 50_256)])
            }
            Encoding::Cl100kBase => (Pattern::Cl100k, cl100k_tokens()),
            Encoding::O200kBase => (Pattern::O200k, o200k_tokens()),
            Encoding::O200kHarmony => (Pattern::O200k, harmony_tokens()),
            Encoding::Llama3 => (Pattern::Llama3, llama3_tokens()),
            Encoding::Qwen2 => (Pattern::Qwen2, qwen2_tokens()),
        };
        Self {
            pattern,
            compose: encoding == Encoding::Qwen2,
            special_tokens: special_tokens
                .into_iter()
                .map(|(token, id)| AddedToken::special(token, id))
                .collect(),
            begin: (encoding == Encoding::Llama3).then_some(128_000),
        }
    }
}

type Tokens = Vec<(String, u32)>;

fn named(first: u32, names: &[&str]) -> Tokens {
    (first..).zip(names).map(|(id, name)| (format!("<|{name}|>"), id)).collect()
}

fn cl100k_tokens() -> Tokens {
    let mut tokens = named(100_257, &["endoftext", "fim_prefix", "fim_middle", "fim_suffix"]);
    tokens.extend(named(100_276, &["endofprompt"]));
    tokens
}

fn o200k_tokens() -> Tokens {
    vec![("<|endoftext|>".into(), 199_999), ("<|endofprompt|>".into(), 200_018)]
}

fn harmony_tokens() -> Tokens {
    let mut tokens =
        named(199_998, &["startoftext", "endoftext", "reserved_200000", "reserved_200001", "return"]);
    tokens.extend(named(200_003, &["constrain", "reserved_200004", "channel", "start", "end", "message"]));
    tokens.extend((200_009..200_012).map(|id| (format!("<|reserved_{id}|>"), id)));
    tokens.extend(named(200_012, &["call"]));
    tokens.extend((200_013..201_088).map(|id| (format!("<|reserved_{id}|>"), id)));
    tokens.extend(named(200_018, &["endofprompt"]));
    tokens
}

fn llama3_tokens() -> Tokens {
    let mut tokens = named(128_000, &["begin_of_text", "end_of_text"]);
    tokens.extend(named(
        128_002,
        &["reserved_special_token_0", "reserved_special_token_1", "finetune_right_pad_id"],
    ));
    tokens
        .extend(named(128_005, &["reserved_special_token_2", "start_header_id", "end_header_id", "eom_id"]));
    tokens.extend(named(128_009, &["eot_id", "python_tag"]));
    tokens.extend((128_011..128_256).map(|id| (format!("<|reserved_special_token_{}|>", id - 128_008), id)));
    tokens
}

fn qwen2_tokens() -> Tokens {
    named(151_643, &["endoftext", "im_start", "im_end"])
}

/// Reads a rank file: its tokens in the order of their ranks.
fn parse(file: &[u8]) -> Result<Vec<(u32, Vec<u8>)>, FileError> {
    let mut tokens = Vec::new();
    let lines = file.split(|&byte| byte == b'\n').map(|line| line.trim_ascii_end());
    for (number, line) in (1usize..).zip(lines).filter(|(_, line)| !line.is_empty()) {
        let token = parse_line(line)
            .ok_or_else(|| FileError::Unknown { reason: format!("line {number} is no token and rank") })?;
        tokens.push(token);
    }
    tokens.sort_unstable_by_key(|(rank, _)| *rank);
    if let Some(twice) = tokens.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(FileError::Unknown { reason: format!("rank {} is there twice", twice[0].0) });
    }
    if tokens.is_empty() {
        return Err(FileError::Unknown { reason: "the file is empty".into() });
    }
    Ok(tokens)
}

fn parse_line(line: &[u8]) -> Option<(u32, Vec<u8>)> {
    let (token, rank) = std::str::from_utf8(line).ok()?.split_once(' ')?;
    let rank = rank.parse().ok().filter(|&rank: &u32| rank <= MAX_ID)?;
    let token = STANDARD.decode(token).ok().filter(|token| !token.is_empty())?;
    Some((rank, token))
}

/// A digest of tokens in the order of their ranks: FNV-1a over ranks, lengths and bytes, 64 bits.
fn digest(tokens: &[(u32, Vec<u8>)]) -> u64 {
    let mut digest = 0xcbf2_9ce4_8422_2325u64;
    let mut mix = |bytes: &[u8]| {
        for &byte in bytes {
            digest = (digest ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    };
    for (rank, token) in tokens {
        mix(&rank.to_le_bytes());
        mix(&(token.len() as u32).to_le_bytes());
        mix(token);
    }
    digest
}

/// The encoding and the tokenizer of a rank file; `ranks` from the file itself where there are none.
pub(crate) fn read(file: &[u8], ranks: Option<Ranks>) -> Result<Core, FileError> {
    let tokens = parse(file)?;
    let known = || Encoding::of(&tokens).map(Ranks::from);
    let ranks = ranks.or_else(known).ok_or(FileError::Encoding { tokens: tokens.len() })?;
    let tokens: Vec<_> = tokens.into_iter().map(|(rank, token)| (rank, token, true)).collect();
    let vocabulary = Vocabulary::new(&tokens);
    let mut bytes = [0; 256];
    for (byte, id) in (0..=255u8).zip(&mut bytes) {
        *id = vocabulary.id(&[byte]).ok_or(FileError::Byte { byte })?;
    }
    let merges = merges(&tokens, &vocabulary);
    Core::new(Parts {
        bytes,
        merges,
        vocabulary,
        whole_words: true,
        splitter: Splitter::of(ranks.pattern),
        compose: ranks.compose,
        added: ranks.special_tokens,
        template: Template { before: ranks.begin.into_iter().collect(), after: Vec::new() },
        trim: None,
    })
}

/// A merge for each way to cut a token into two others. tiktoken merges the neighbours that make the token of the
/// lowest rank, whichever they are.
fn merges(tokens: &[(u32, Vec<u8>, bool)], vocabulary: &Vocabulary) -> Vec<Merge> {
    // Of all places, those at which the lengths of two tokens meet: else a token of megabytes takes hours.
    let lengths: BTreeSet<usize> = tokens.iter().map(|(_, token, _)| token.len()).collect();
    let mut merges = Vec::new();
    for (rank, token, _) in tokens {
        let meet = |cut: &&usize| lengths.contains(&(token.len() - **cut));
        for &cut in lengths.range(..token.len()).filter(meet) {
            let (left, right) = token.split_at(cut);
            let Some(left) = vocabulary.id(left) else { continue };
            let Some(right) = vocabulary.id(right) else { continue };
            merges.push(Merge { left, right, rank: *rank, made: *rank });
        }
    }
    merges
}

#[cfg(test)]
mod tests;
