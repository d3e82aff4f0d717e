//! Long lists, page by page: a number of elements, and a token for the next ones. A token names the last
//! element of the page, so that elements that are added or removed meanwhile neither repeat nor hide others.

use axum::http::Uri;
use axum::http::header::LINK;
use axum::response::IntoResponse;
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;

use super::problem::{Refusal, bad_request, invalid};
use super::{Answer, hex, json};

/// The default number of elements of a page.
const USUAL: usize = 1000;
/// Elements of the longest page.
const MOST: usize = 10_000;

/// Which page of a list is wanted.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Paged {
    /// Elements of a page, 1000 by default.
    #[param(minimum = 1, maximum = 10_000, nullable = false)]
    limit: Option<usize>,
    /// The start of this page: the token in the `link` header of the page before. Only the server reads it.
    #[param(pattern = "^([0-9a-f]{2})+$", nullable = false)]
    page: Option<String>,
}

impl Paged {
    /// The same, of a list that is asked for with more than that.
    pub(super) fn of(limit: Option<usize>, page: Option<String>) -> Paged {
        Paged { limit, page }
    }

    /// Elements of the page.
    pub(super) fn limit(&self) -> Result<usize, Refusal> {
        match self.limit {
            None => Ok(USUAL),
            Some(limit @ 1..=MOST) => Ok(limit),
            Some(limit) => Err(bad_request(format!("limit: {limit} is not a number from 1 to {MOST}"))),
        }
    }

    /// The last element of the page before.
    pub(super) fn after(&self) -> Result<Option<String>, Refusal> {
        let Some(token) = &self.page else { return Ok(None) };
        let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        let bytes: Option<Vec<u8>> = token.as_bytes().chunks(2).map(pair).collect();
        let name = bytes
            .filter(|bytes| !bytes.is_empty() && token.len().is_multiple_of(2))
            .and_then(|bytes| String::from_utf8(bytes).ok());
        match name {
            Some(name) => Ok(Some(name)),
            None => Err(invalid("page: not the token of a page; take it from the link header as it is")),
        }
    }
}

/// One page of `all`, which is ordered by `key`.
pub(super) fn page<T: Serialize>(
    uri: &Uri,
    paged: &Paged,
    mut all: Vec<T>,
    key: impl Fn(&T) -> String,
) -> Answer {
    let limit = paged.limit()?;
    if let Some(after) = paged.after()? {
        all.retain(|one| key(one) > after);
    }
    let more = all.len() > limit;
    all.truncate(limit);
    let next = all.last().filter(|_| more).map(key);
    answer(uri, limit, &all, next)
}

/// A page, and the start of the next one.
pub(super) fn answer(uri: &Uri, limit: usize, page: &[impl Serialize], next: Option<String>) -> Answer {
    let Some(next) = next else { return json(&page) };
    let token = hex(next.as_bytes());
    // The other parameters hold for all pages.
    let asked = uri.query().unwrap_or_default().split('&');
    let others =
        asked.filter(|asked| !["", "limit", "page"].contains(&asked.split('=').next().unwrap_or_default()));
    let others: String = others.map(|asked| format!("{asked}&")).collect();
    let link = format!("<{}?{others}limit={limit}&page={token}>; rel=\"next\"", uri.path());
    Ok(([(LINK, link)], json(&page)?).into_response())
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pages_put_together_are_the_list(count in 0usize..60, limit in 1usize..20) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            let all: Vec<String> = (0..count).map(|at| format!("n{at:03}")).collect();
            let uri: Uri = "/v1/things".parse().expect("a path");
            let (mut found, mut token, mut pages) = (Vec::<String>::new(), None, 0);
            loop {
                let paged = Paged { limit: Some(limit), page: token };
                let answer = page(&uri, &paged, all.clone(), Clone::clone).expect("a page");
                token = answer.headers().get(LINK).map(|link| {
                    let link = link.to_str().expect("text");
                    let (_, after) = link.split_once("page=").expect("a token");
                    after.split('>').next().expect("not empty").to_owned()
                });
                let body = runtime.block_on(to_bytes(answer.into_body(), 1 << 20)).expect("all of it");
                found.extend(serde_json::from_slice::<Vec<String>>(&body).expect("a list"));
                pages += 1;
                if token.is_none() {
                    break;
                }
            }
            prop_assert_eq!(found, all);
            prop_assert_eq!(pages, count.div_ceil(limit).max(1));
        }
    }

    #[test]
    fn what_else_was_asked_holds_for_the_next_page() {
        let uri: Uri = "/v1/things?details=true&limit=9&page=6e".parse().expect("a path");
        let all = ["a", "b"].map(str::to_owned).to_vec();
        let paged = Paged::of(Some(1), None);
        let answer = page(&uri, &paged, all, Clone::clone).expect("a page");
        let link = answer.headers()[LINK].to_str().expect("text");
        assert_eq!(link, "</v1/things?details=true&limit=1&page=61>; rel=\"next\"");
    }

    #[test]
    fn tokens_and_limits_of_others_are_refused() {
        for token in ["x", "0", "zz", "ff", ""] {
            let paged = Paged { limit: None, page: Some(token.to_owned()) };
            assert!(paged.after().is_err(), "{token}");
        }
        for limit in [0, MOST + 1] {
            assert!(Paged { limit: Some(limit), page: None }.limit().is_err());
        }
    }
}
