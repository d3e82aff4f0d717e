//! What a URL of the Hugging Face Hub names, as `HfFileSystem` spells it, and how the Hub is reached. Pure.

use std::path::PathBuf;

use percent_encoding::percent_decode_str;
use shardd_store::stores::check_endpoint;

/// How a URL has to look, for messages.
const FORM: &str = "give it as hf://datasets/OWNER/NAME[@REVISION]/PATH";
/// The Hub itself.
const ENDPOINT: &str = "https://huggingface.co";
/// The revision of a URL that names none.
const MAIN: &str = "main";

/// A dataset of the Hub, and a path or pattern in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place<'u> {
    pub(super) owner: &'u str,
    pub(super) name: &'u str,
    /// A branch, a tag, a special ref or a commit.
    pub(super) revision: String,
    /// Without slashes at its beginning.
    pub(super) path: &'u str,
}

impl<'u> Place<'u> {
    /// # Errors
    /// The fault with the way out.
    pub(super) fn parse(url: &'u str) -> Result<Place<'u>, String> {
        let (_, rest) = url.split_once("://").ok_or_else(|| FORM.to_owned())?;
        let Some(rest) = rest.strip_prefix("datasets/") else {
            return Err(format!("only datasets of the Hub are read; {FORM}"));
        };
        let (owner, rest) = rest.split_once('/').unwrap_or((rest, ""));
        let end = rest.find(['/', '@']).unwrap_or(rest.len());
        let (name, rest) = rest.split_at(end);
        let is_name = |text: &str| {
            let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            !text.is_empty() && text.bytes().all(is_allowed) && !text.starts_with('.')
        };
        if !is_name(owner) || !is_name(name) {
            return Err(format!("names no dataset by its owner and its name; {FORM}"));
        }
        let (revision, path) = match rest.strip_prefix('@') {
            None => (MAIN.to_owned(), rest),
            Some(rest) => {
                let (revision, path) = rest.split_at(revision_length(rest));
                let revision = percent_decode_str(revision).decode_utf8_lossy().into_owned();
                (revision, path)
            }
        };
        if revision.is_empty() {
            return Err(format!("names no revision after the @; {FORM}"));
        }
        Ok(Place { owner, name, revision, path: path.trim_start_matches('/') })
    }

    /// The commit, if the revision is one.
    pub(super) fn commit(&self) -> Option<&str> {
        let is_commit = self.revision.len() == 40
            && self.revision.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        is_commit.then_some(self.revision.as_str())
    }
}

/// The length of the revision that a text begins with: special refs have slashes in them, and any other slash is written
/// as `%2F`.
fn revision_length(text: &str) -> usize {
    let mut steps = text.split('/');
    let special = match (steps.next(), steps.next(), steps.next()) {
        (Some("refs"), Some(kind @ "convert"), Some(name)) if !name.is_empty() => Some((kind, name)),
        (Some("refs"), Some(kind @ "pr"), Some(name)) if name.parse::<u32>().is_ok() => Some((kind, name)),
        _ => None,
    };
    match special {
        Some((kind, name)) => "refs//".len() + kind.len() + name.len(),
        None => text.find('/').unwrap_or(text.len()),
    }
}

/// How the Hub is reached.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Settings {
    /// Without a slash at its end.
    pub(super) endpoint: String,
    pub(super) token: Token,
}

/// The place of the token.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Token {
    Is(String),
    /// In this file, if it is there.
    In(PathBuf),
    Nowhere,
}

impl Settings {
    /// The settings that `variable` gives, under the names of the Hub's own tools.
    ///
    /// # Errors
    /// The fault of an endpoint that is none.
    pub(super) fn of(variable: impl Fn(&str) -> Option<String>) -> Result<Settings, String> {
        let variable = |name: &str| {
            variable(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
        };
        let endpoint = variable("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned());
        check_endpoint(&endpoint).map_err(|_| {
            format!("HF_ENDPOINT is not a URL with http:// or https://, such as {ENDPOINT}, without user and password")
        })?;
        let home = |folder: &str| variable("HOME").map(|home| PathBuf::from(home).join(folder));
        let expanded = |path: String| match path.strip_prefix("~/") {
            Some(rest) => home(rest).unwrap_or_else(|| path.clone().into()),
            None => path.into(),
        };
        let caches = || variable("XDG_CACHE_HOME").map(expanded).or_else(|| home(".cache"));
        let own = || variable("HF_HOME").map(expanded).or_else(|| Some(caches()?.join("huggingface")));
        let token = match variable("HF_TOKEN").or_else(|| variable("HUGGING_FACE_HUB_TOKEN")) {
            Some(token) => Token::Is(token),
            None => variable("HF_TOKEN_PATH")
                .map(expanded)
                .or_else(|| Some(own()?.join("token")))
                .map_or(Token::Nowhere, Token::In),
        };
        Ok(Settings { endpoint: endpoint.trim_end_matches('/').to_owned(), token })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place<'u>(owner: &'u str, name: &'u str, revision: &str, path: &'u str) -> Result<Place<'u>, String> {
        Ok(Place { owner, name, revision: revision.to_owned(), path })
    }

    #[test]
    fn urls_are_read_as_the_file_system_of_the_hub_reads_them() {
        let parsed = |rest: &'static str| Place::parse(rest);
        assert_eq!(parsed("hf://datasets/a/b"), place("a", "b", "main", ""));
        assert_eq!(parsed("hf://datasets/a/b/"), place("a", "b", "main", ""));
        assert_eq!(parsed("hf://datasets/a/b/train/*.csv"), place("a", "b", "main", "train/*.csv"));
        assert_eq!(parsed("hf://datasets/a/b@v1.0/x@y"), place("a", "b", "v1.0", "x@y"));
        assert_eq!(parsed("hf://datasets/a/b@dev%2Fnew/x"), place("a", "b", "dev/new", "x"));
        assert_eq!(
            parsed("hf://datasets/a/b@refs/convert/parquet/c/d"),
            place("a", "b", "refs/convert/parquet", "c/d")
        );
        assert_eq!(parsed("hf://datasets/a/b@refs%2Fpr%2F7"), place("a", "b", "refs/pr/7", ""));
        assert_eq!(parsed("hf://datasets/a/b@refs/pr/x"), place("a", "b", "refs", "pr/x"));
        assert!(parsed("hf://datasets/a/b").unwrap().commit().is_none());
        let commit = "hf://datasets/a/b@0123456789abcdef0123456789abcdef01234567/x";
        assert_eq!(parsed(commit).unwrap().commit(), Some("0123456789abcdef0123456789abcdef01234567"));
        for (url, reason) in [
            ("hf://a/b", "only datasets"),
            ("hf://buckets/a/b", "only datasets"),
            ("hf://datasets/mnist", "its owner and its name"),
            ("hf://datasets/a/../x", "its owner and its name"),
            ("hf://datasets//b", "its owner and its name"),
            ("hf://datasets/a/b?x", "its owner and its name"),
            ("hf://datasets/a/b@/x", "no revision"),
        ] {
            let refused = parsed(url).unwrap_err();
            assert!(refused.contains(reason) && refused.contains("hf://datasets/OWNER/NAME"), "{refused}");
        }
    }

    #[test]
    fn settings_have_the_names_of_the_tools_of_the_hub() {
        let settings = |variables: &[(&str, &str)]| {
            Settings::of(|name| {
                let found = variables.iter().find(|(variable, _)| *variable == name);
                found.map(|(_, value)| (*value).to_owned())
            })
        };
        let token = |variables: &[(&str, &str)]| match settings(variables).unwrap().token {
            Token::Is(token) => format!("is {token}"),
            Token::In(path) => path.display().to_string(),
            Token::Nowhere => "nowhere".to_owned(),
        };
        assert_eq!(settings(&[]).unwrap().endpoint, "https://huggingface.co");
        assert_eq!(
            settings(&[("HF_ENDPOINT", "http://127.0.0.1:9/")]).unwrap().endpoint,
            "http://127.0.0.1:9"
        );
        assert!(settings(&[("HF_ENDPOINT", "huggingface.co")]).is_err());
        assert_eq!(token(&[]), "nowhere");
        assert_eq!(token(&[("HOME", "/h")]), "/h/.cache/huggingface/token");
        assert_eq!(token(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/c")]), "/c/huggingface/token");
        assert_eq!(token(&[("HOME", "/h"), ("HF_HOME", "~/f")]), "/h/f/token");
        assert_eq!(token(&[("HF_HOME", "/f"), ("HF_TOKEN_PATH", "/t")]), "/t");
        assert_eq!(token(&[("HF_HOME", "/f"), ("HUGGING_FACE_HUB_TOKEN", "old")]), "is old");
        assert_eq!(token(&[("HF_TOKEN", " new\n"), ("HUGGING_FACE_HUB_TOKEN", "old")]), "is new");
    }
}
