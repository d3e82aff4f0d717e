//! A token, and its record.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use shardfmt::DatasetName;
use shardfmt::digest::Digest;

use crate::identity::Secret;

/// How tokens begin, so that people and scanners of secrets know them.
const PREFIX: &str = "shardd";
/// The context of the digest of a token's secret.
const DIGEST_CONTEXT: &str = "shardd 2026 token v1";
/// The format of [`TokenRecord`].
const FORMAT: u32 = 1;

/// The rights of a bearer; each includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Read all that there is, and train on it.
    Read,
    /// Add and remove datasets, tags and plans.
    Write,
    /// Collect garbage, make and revoke tokens and certificates.
    Admin,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Read => "read",
            Role::Write => "write",
            Role::Admin => "admin",
        })
    }
}

/// Which datasets a token is for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Scope(Option<BTreeSet<DatasetName>>);

impl Scope {
    /// These, or all if none is named.
    pub fn of(datasets: impl IntoIterator<Item = DatasetName>) -> Scope {
        let datasets: BTreeSet<DatasetName> = datasets.into_iter().collect();
        Scope((!datasets.is_empty()).then_some(datasets))
    }

    /// Whether the dataset is among them.
    pub fn holds(&self, dataset: &DatasetName) -> bool {
        self.0.as_ref().is_none_or(|datasets| datasets.contains(dataset))
    }

    /// Their names; none: all there are and will be.
    pub fn names(&self) -> Option<Vec<DatasetName>> {
        self.0.as_ref().map(|datasets| datasets.iter().cloned().collect())
    }

    /// Whether it is for all there are and will be.
    pub fn is_all(&self) -> bool {
        self.0.is_none()
    }
}

/// Names a token; no secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenId(u64);

impl fmt::Display for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Not the form of a token's name. It is not repeated: it may be the token itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the id of a token: give the 16 hex digits that `shardctl token ls` shows")]
pub struct BadTokenId;

impl FromStr for TokenId {
    type Err = BadTokenId;

    fn from_str(text: &str) -> Result<TokenId, BadTokenId> {
        let is_hex = text.len() == 16 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        match u64::from_str_radix(text, 16) {
            Ok(id) if is_hex => Ok(TokenId(id)),
            _ => Err(BadTokenId),
        }
    }
}

/// `shardd_<16 hex digits, its name>_<64 hex digits, its secret>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// Its name.
    pub id: TokenId,
    secret: Secret,
}

/// A time as HTTP writes it.
fn date(seconds: u64) -> String {
    // Beyond the year 9999 HTTP has no dates.
    let at = UNIX_EPOCH.checked_add(Duration::from_secs(seconds.min(253_402_300_799)));
    at.map_or_else(|| seconds.to_string(), httpdate::fmt_http_date)
}

/// Not the form of a token. It is not repeated, as part of it may be secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a token; copy the whole line that `shardctl token create` printed: shardd_..._...")]
pub struct BadToken;

impl Token {
    /// A new one, from the system's source of randomness.
    ///
    /// # Panics
    /// When the system has none.
    #[must_use]
    pub fn random() -> Token {
        let name = Secret::random().reveal();
        Token { id: name[..16].parse().expect("hex digits"), secret: Secret::random() }
    }

    /// The token as its bearer has it.
    #[must_use]
    pub fn reveal(&self) -> String {
        format!("{PREFIX}_{}_{}", self.id, self.secret.reveal())
    }

    fn digest(&self) -> Digest {
        // 256 random bits cannot be guessed: a slow hash would add nothing.
        Digest(blake3::derive_key(DIGEST_CONTEXT, self.secret.reveal().as_bytes()))
    }
}

impl FromStr for Token {
    type Err = BadToken;

    fn from_str(text: &str) -> Result<Token, BadToken> {
        let parts: Vec<&str> = text.split('_').collect();
        let [PREFIX, id, secret] = parts[..] else { return Err(BadToken) };
        Ok(Token { id: id.parse().map_err(|_| BadToken)?, secret: secret.parse().map_err(|_| BadToken)? })
    }
}

/// The stored form of a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenRecord {
    format: u32,
    /// Its name for people: its intended holder.
    pub name: String,
    /// The rights of its bearer.
    pub role: Role,
    /// On which datasets.
    #[serde(default, skip_serializing_if = "Scope::is_all")]
    pub datasets: Scope,
    /// When it was made, in seconds since 1970.
    pub created_at: u64,
    /// When it ends, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<u64>,
    digest: Digest,
}

/// Why a token allows nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// Never made, revoked, or not the secret of that name: a guesser learns no more.
    #[error(
        "the token is not valid: it was revoked, is of another cluster, or was cut; make one with `shardctl token create`"
    )]
    Unknown,
    /// It may be good, but that cannot be looked up.
    #[error(
        "tokens cannot be looked up: the metastore has been away since this node started; try again when it is back"
    )]
    Away,
    /// Its time is over.
    #[error("the token expired at {}; make another one with `shardctl token create`", date(*at))]
    Expired {
        /// When.
        at: u64,
    },
}

impl TokenRecord {
    /// The form of a token to store.
    #[must_use]
    pub fn of(
        token: &Token,
        name: String,
        role: Role,
        datasets: Scope,
        now: u64,
        expires_at: Option<u64>,
    ) -> TokenRecord {
        TokenRecord {
            format: FORMAT,
            name,
            role,
            datasets,
            created_at: now,
            expires_at,
            digest: token.digest(),
        }
    }

    /// Whether this is the stored form of the token, at this time. Takes the same time for every wrong
    /// secret.
    ///
    /// # Errors
    /// [`Denied`], for its holder.
    pub fn check(&self, token: &Token, now: u64) -> Result<(), Denied> {
        // In constant time: of equal length, and compared as hashes are.
        if blake3::Hash::from_bytes(self.digest.0) != blake3::Hash::from_bytes(token.digest().0) {
            return Err(Denied::Unknown);
        }
        match self.expires_at {
            Some(at) if at <= now => Err(Denied::Expired { at }),
            _ => Ok(()),
        }
    }

    /// Whether its bearer makes and revokes tokens.
    pub fn is_administrator(&self, now: u64) -> bool {
        self.role == Role::Admin && self.datasets.is_all() && self.expires_at.is_none_or(|at| at > now)
    }

    /// Whether it can be read by this release.
    pub(super) fn is_known(&self) -> bool {
        self.format == FORMAT
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record(token: &Token, expires_at: Option<u64>) -> TokenRecord {
        TokenRecord::of(token, "ci".to_owned(), Role::Read, Scope::default(), 100, expires_at)
    }

    #[test]
    fn a_token_is_one_word_and_its_record_does_not_give_it_away() {
        let token = Token::random();
        let text = token.reveal();
        assert_eq!(text.parse::<Token>(), Ok(token.clone()));
        assert_eq!(text.len(), "shardd_".len() + 16 + 1 + 64);
        let kept = serde_json::to_string(&record(&token, None)).expect("plain data");
        let secret = text.rsplit('_').next().expect("its secret");
        assert!(!kept.contains(secret) && !format!("{token:?}").contains(secret), "{kept} {token:?}");
    }

    #[test]
    fn only_the_token_itself_is_good_and_only_in_its_time() {
        let (token, other) = (Token::random(), Token::random());
        let forged = Token { id: token.id, ..other.clone() };
        let kept = record(&token, Some(200));
        assert_eq!(kept.check(&token, 199), Ok(()));
        assert_eq!(kept.check(&token, 200), Err(Denied::Expired { at: 200 }));
        for wrong in [&other, &forged] {
            assert_eq!(kept.check(wrong, 300), Err(Denied::Unknown), "there is nothing about its time");
        }
        assert_eq!(record(&token, None).check(&token, u64::MAX), Ok(()));
    }

    #[test]
    fn a_scope_that_names_nothing_is_all() {
        let name = |text: &str| text.parse::<DatasetName>().expect("a name");
        let (all, some) = (Scope::of([]), Scope::of([name("a"), name("b")]));
        assert!(all.is_all() && all.holds(&name("x")));
        assert!(!some.is_all() && some.holds(&name("b")) && !some.holds(&name("c")));
        assert_eq!(serde_json::to_string(&some).expect("plain data"), r#"["a","b"]"#);
    }

    proptest! {
        #[test]
        fn what_is_no_token_is_refused_and_not_repeated(text in "(shardd_)?[0-9a-fg_]{0,90}") {
            if let Ok(token) = text.parse::<Token>() {
                prop_assert_eq!(token.reveal(), text);
            }
        }
    }
}
