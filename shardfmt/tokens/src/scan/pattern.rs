//! The patterns that have a pre-tokenizer by hand, by name and by the regexes that files spell them with.

/// How a text is cut into words, before each word becomes tokens of its own.
///
/// Each pattern equals a regex, up to the versions of Unicode: see [`Pattern::regexes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Pattern {
    /// GPT-2, r50k_base, p50k_base.
    Gpt2,
    /// cl100k_base of tiktoken since 0.8: white space at the end of a text is one word.
    Cl100k,
    /// Llama 3, and cl100k_base in files of Hugging Face: white space at the end of a text is cut after its last
    /// newline.
    Llama3,
    /// Qwen 2 to Qwen 3: each number is a word.
    Qwen2,
    /// Qwen 3.5: as Qwen 2, with combining marks in words.
    Qwen35,
    /// o200k_base, o200k_harmony, Llama 4.
    O200k,
    /// The last of the three patterns of DeepSeek V3 and R1.
    DeepSeek3,
}

const GPT2: &[&str] = &[
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s",
];
const CL100K: &[&str] = &[
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
];
const LLAMA3: &[&str] = &[
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
];
const QWEN2: &[&str] = &[
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
];
const QWEN35: &[&str] = &[
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
];
const O200K: &[&str] = &[
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
];
const DEEPSEEK3: &[&str] = &[concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|"##,
    "[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
)];

impl Pattern {
    /// All patterns, each once.
    pub const ALL: [Self; 7] =
        [Self::Gpt2, Self::Cl100k, Self::Llama3, Self::Qwen2, Self::Qwen35, Self::O200k, Self::DeepSeek3];

    /// The regexes that have the matches of this pattern, in the syntax of `fancy-regex`.
    #[must_use]
    pub fn regexes(self) -> &'static [&'static str] {
        match self {
            Self::Gpt2 => GPT2,
            Self::Cl100k => CL100K,
            Self::Llama3 => LLAMA3,
            Self::Qwen2 => QWEN2,
            Self::Qwen35 => QWEN35,
            Self::O200k => O200K,
            Self::DeepSeek3 => DEEPSEEK3,
        }
    }

    /// The pattern that `regex` spells, if it is one of these.
    #[must_use]
    pub fn of_regex(regex: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|pattern| pattern.regexes().contains(&regex))
    }
}
