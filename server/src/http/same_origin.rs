//! Whether a request is for this node, and from no web page of another site. A browser lets any page send requests to
//! loopback and to the network it is in, and shows the page the answers once the page's own name resolves to this node
//! (DNS rebinding). So a name that is not this node's is refused, and so is a page of another origin.
//!
//! Decides by what a request says; knows nothing of routes. The body's media type is looked at where bodies are read.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State as Extract};
use axum::http::header::{CONTENT_TYPE, HOST, HeaderMap, ORIGIN};
use axum::http::uri::Authority;
use axum::http::{HeaderName, Method, Version};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use shardd_api::problem::Kind;
use shardd_certificates::Host;

use super::Shared;
use super::problem::Refusal;

/// Where the page is from that asks, by its browser (W3C, Fetch Metadata Request Headers).
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// What the answer is for.
const FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");
/// How much of what a client sent is repeated to it.
const REPEATED: usize = 80;

/// The address of this machine at which a connection came in.
#[derive(Clone, Copy, Debug)]
pub(super) struct CameInAt(pub(super) IpAddr);

/// Lets through requests for this node that come from no page of another site.
pub(super) async fn ours(Extract(shared): Extract<Arc<Shared>>, request: Request, next: Next) -> Response {
    let access = &shared.api.access;
    let own = Own {
        hosts: &access.hosts,
        address: request.extensions().get::<CameInAt>().map(|at| at.0),
        any_name: access.is_required(),
    };
    let asked = Asked {
        version: request.version(),
        target: request.uri().authority().map(Authority::as_str),
        host: said(request.headers(), &HOST),
        origin: said(request.headers(), &ORIGIN),
        site: match opens_console(&request) {
            true => Said::Nothing,
            false => said(request.headers(), &FETCH_SITE),
        },
    };
    match check(&asked, &own) {
        Ok(()) => next.run(request).await,
        Err(strange) => Refusal::of(strange.kind(), strange).into_response(),
    }
}

/// Whether a window opens the console, be it by a link of another site. The page is the same for all, no frame shows it, and what
/// it asks for is of its own origin.
fn opens_console(request: &Request) -> bool {
    let is_window = said(request.headers(), &FETCH_DEST) == Said::Once("document");
    is_window && request.method() == Method::GET && request.uri().path() == "/"
}

/// The value of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said<'a> {
    Nothing,
    Once(&'a str),
    /// More than once, or not text.
    Unclear,
}

fn said<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Said<'a> {
    let mut all = headers.get_all(name).iter();
    match (all.next(), all.next()) {
        (None, _) => Said::Nothing,
        (Some(value), None) => value.to_str().map_or(Said::Unclear, |text| Said::Once(text.trim())),
        (Some(_), Some(_)) => Said::Unclear,
    }
}

/// The target of a request, and the page that sends it, by its headers.
#[derive(Clone, Copy, Debug)]
struct Asked<'a> {
    version: Version,
    /// The authority of an absolute request target, which counts in place of `host` (RFC 9112, 3.2.2).
    target: Option<&'a str>,
    host: Said<'a>,
    origin: Said<'a>,
    site: Said<'a>,
}

/// The settings of a node.
#[derive(Clone, Copy, Debug)]
struct Own<'a> {
    /// By settings.
    hosts: &'a [Host],
    /// The address at which the request came in.
    address: Option<IpAddr>,
    /// Whether any name will do: no page has the token that is asked for.
    any_name: bool,
}

/// Why a request is refused. Each message says what to do where it was meant well.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum Strange {
    #[error("the request has no host header, or several; send one, as HTTP/1.1 asks")]
    NoHost,
    #[error("host: {0:?} is not HOST or HOST:PORT")]
    BadHost(String),
    #[error(
        "this node is not called {0:?}; ask it by localhost or its IP address, or start it with --allowed-hosts {0}"
    )]
    ForeignHost(String),
    #[error(
        "origin: {0:?} is not this node's, and pages of other sites may not ask it; ask from a program that \
         is not a web page, or, behind a proxy, have the proxy pass on the host header as it is"
    )]
    ForeignOrigin(String),
    #[error(
        "sec-fetch-site: {0:?}: pages of other sites and ports may not ask this node; enter the address by \
         hand, or ask from a program that is not a web page"
    )]
    CrossSite(String),
}

impl Strange {
    fn kind(&self) -> Kind {
        match self {
            Strange::NoHost | Strange::BadHost(_) => Kind::Malformed,
            Strange::ForeignHost(_) => Kind::ForeignHost,
            Strange::ForeignOrigin(_) | Strange::CrossSite(_) => Kind::ForeignOrigin,
        }
    }
}

/// Whether a request is for this node and from no page of another site.
fn check(asked: &Asked, own: &Own) -> Result<(), Strange> {
    let named = name_of(asked)?;
    if let Some((host, _)) = &named
        && !own.any_name
        && !own.is(host)
    {
        return Err(Strange::ForeignHost(host.to_string()));
    }
    match asked.site {
        Said::Nothing | Said::Once("same-origin" | "none") => {}
        Said::Once(site) => return Err(Strange::CrossSite(shortened(site))),
        Said::Unclear => return Err(Strange::CrossSite("several".to_owned())),
    }
    match asked.origin {
        Said::Nothing => Ok(()),
        Said::Once(origin) if is_same(origin, named.as_ref()) => Ok(()),
        Said::Once(origin) => Err(Strange::ForeignOrigin(shortened(origin))),
        Said::Unclear => Err(Strange::ForeignOrigin("several".to_owned())),
    }
}

/// The host that is asked, and its port. `None`: an old client says none, and is no browser.
fn name_of(asked: &Asked) -> Result<Option<(Host, Option<u16>)>, Strange> {
    let text = match (asked.target, asked.host) {
        (_, Said::Unclear) => return Err(Strange::NoHost),
        (Some(target), _) => target,
        (None, Said::Once(host)) if !host.is_empty() => host,
        (None, _) if asked.version < Version::HTTP_11 => return Ok(None),
        (None, _) => return Err(Strange::NoHost),
    };
    parsed(text).map(Some).ok_or_else(|| Strange::BadHost(shortened(text)))
}

impl Own<'_> {
    fn is(&self, host: &Host) -> bool {
        let is_here = match host {
            Host::Address(address) => address.is_loopback() || self.address == Some(*address),
            Host::Name(name) => name == "localhost",
        };
        is_here || self.hosts.contains(host)
    }
}

/// `HOST` or `HOST:PORT`, in lower case and without the dot at its end.
fn parsed(text: &str) -> Option<(Host, Option<u16>)> {
    let authority: Authority = text.parse().ok().filter(|_| !text.contains('@'))?;
    let port = match text.strip_prefix(authority.host())? {
        "" | ":" => None,
        port => Some(port.strip_prefix(':')?.parse().ok()?),
    };
    let bracketed = authority.host().strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let host = match bracketed {
        Some(address) => Host::Address(IpAddr::V6(address.parse().ok()?).to_canonical()),
        None => {
            let name = authority.host().to_ascii_lowercase();
            let name = name.strip_suffix('.').unwrap_or(&name);
            match name.parse::<IpAddr>() {
                Ok(address) => Host::Address(address.to_canonical()),
                Err(_) if name.is_empty() => return None,
                Err(_) => Host::Name(name.to_owned()),
            }
        }
    };
    Some((host, port))
}

/// Whether an origin is that of this server: the same host, and the same port, explicit or the usual one.
fn is_same(origin: &str, named: Option<&(Host, Option<u16>)>) -> bool {
    let (Some((scheme, rest)), Some((host, port))) = (origin.split_once("://"), named) else { return false };
    let usual = match scheme {
        "http" => 80,
        "https" => 443,
        _ => return false,
    };
    parsed(rest).is_some_and(|(of_page, at)| of_page == *host && at.unwrap_or(usual) == port.unwrap_or(usual))
}

/// Refuses a body of JSON that is not sent as such: a page of another site can send text and forms without being asked for leave
/// (CORS), and nothing else.
pub(super) fn check_json(headers: &HeaderMap) -> Result<(), Refusal> {
    let sent = match said(headers, &CONTENT_TYPE) {
        Said::Once(kind) if is_json(kind) => return Ok(()),
        Said::Once(kind) => format!("{:?}", shortened(kind)),
        Said::Nothing => "nothing".to_owned(),
        Said::Unclear => "several".to_owned(),
    };
    let detail = format!("content-type: {sent}, and this takes JSON; send `content-type: application/json`");
    Err(Refusal::of(Kind::UnsupportedMediaType, detail))
}

/// Whether a media type is that of JSON, whatever its parameters.
fn is_json(kind: &str) -> bool {
    let essence = kind.split(';').next().unwrap_or_default();
    essence.trim().eq_ignore_ascii_case("application/json")
}

fn shortened(text: &str) -> String {
    text.chars().take(REPEATED).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PLAIN: Asked = Asked {
        version: Version::HTTP_11,
        target: None,
        host: Said::Once("localhost:7700"),
        origin: Said::Nothing,
        site: Said::Nothing,
    };

    fn hosts() -> Vec<Host> {
        ["10.0.0.1", "n1.lab", "2001:db8::1"].map(|host| host.parse().expect("a host")).to_vec()
    }

    fn checked(asked: Asked) -> Result<(), Strange> {
        let address = Some("192.168.1.5".parse().expect("an address"));
        check(&asked, &Own { hosts: &hosts(), address, any_name: false })
    }

    fn kind(asked: Asked) -> Option<Kind> {
        checked(asked).err().map(|strange| strange.kind())
    }

    #[test]
    fn a_node_is_asked_by_its_own_names_and_at_any_port() {
        let own = [
            "localhost",
            "localhost:7700",
            "LocalHost.:80",
            "localhost:",
            "127.0.0.1:7700",
            "127.9.9.9",
            "[::1]:7700",
            "[::ffff:127.0.0.1]",
            "10.0.0.1:1",
            "N1.Lab.:7700",
            "[2001:DB8::1]",
            "192.168.1.5:7700",
        ];
        for host in own {
            assert_eq!(checked(Asked { host: Said::Once(host), ..PLAIN }), Ok(()), "{host}");
        }
        let foreign = [
            "evil.example",
            "evil.example:7700",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "10.0.0.2",
            "0.0.0.0:7700",
            "[::2]:7700",
            "n1",
            "127.1",
            "2130706433",
        ];
        for host in foreign {
            let strange = checked(Asked { host: Said::Once(host), ..PLAIN }).expect_err(host);
            assert_eq!(strange.kind(), Kind::ForeignHost, "{host}");
            assert!(strange.to_string().contains("--allowed-hosts"), "{strange}");
        }
        for host in
            ["a b", "localhost:port", "localhost:99999", "me@localhost", "[::1", "[fe80::1%25eth0]", "."]
        {
            assert_eq!(kind(Asked { host: Said::Once(host), ..PLAIN }), Some(Kind::Malformed), "{host}");
        }
    }

    #[test]
    fn an_absolute_target_counts_in_place_of_the_host_and_only_old_clients_may_say_none() {
        let of = |version, target, host| kind(Asked { version, target, host, ..PLAIN });
        let (old, new) = (Version::HTTP_10, Version::HTTP_11);
        assert_eq!(of(old, None, Said::Nothing), None);
        assert_eq!(of(old, None, Said::Once("")), None);
        assert_eq!(of(old, None, Said::Once("evil.example")), Some(Kind::ForeignHost));
        assert_eq!(of(new, None, Said::Nothing), Some(Kind::Malformed));
        assert_eq!(of(new, None, Said::Once("")), Some(Kind::Malformed));
        assert_eq!(of(new, None, Said::Unclear), Some(Kind::Malformed));
        assert_eq!(of(new, Some("localhost:1"), Said::Unclear), Some(Kind::Malformed));
        assert_eq!(of(new, Some("evil.example"), Said::Once("localhost")), Some(Kind::ForeignHost));
        assert_eq!(of(new, Some("localhost"), Said::Once("evil.example")), None);
    }

    #[test]
    fn where_a_token_is_asked_any_name_will_do_and_pages_of_other_sites_do_not() {
        let tokens = Own { hosts: &[], address: None, any_name: true };
        let proxied = Asked { host: Said::Once("data.example"), ..PLAIN };
        assert_eq!(check(&proxied, &tokens), Ok(()));
        let page = Asked { origin: Said::Once("https://evil.example"), ..proxied };
        assert_eq!(check(&page, &tokens).map_err(|strange| strange.kind()), Err(Kind::ForeignOrigin));
    }

    #[test]
    fn a_page_asks_the_origin_that_it_is_from() {
        let same = [
            ("localhost:7700", "http://localhost:7700"),
            ("LOCALHOST:7700", "http://localhost:7700"),
            ("127.0.0.1", "http://127.0.0.1"),
            ("127.0.0.1:80", "http://127.0.0.1"),
            ("n1.lab", "https://n1.lab:443"),
            ("[::1]:7700", "http://[::1]:7700"),
        ];
        for (host, origin) in same {
            let asked = Asked { host: Said::Once(host), origin: Said::Once(origin), ..PLAIN };
            assert_eq!(checked(asked), Ok(()), "{host} {origin}");
        }
        let foreign = [
            "http://evil.example",
            "http://localhost:3000",
            "http://localhost",
            "https://localhost",
            "http://127.0.0.1:7700",
            "http://localhost:7700@evil.example",
            "http://localhost:7700.evil.example",
            "null",
            "",
            "file://",
            "chrome-extension://localhost:7700",
            "localhost:7700",
        ];
        for origin in foreign {
            let asked = Asked { origin: Said::Once(origin), ..PLAIN };
            assert_eq!(kind(asked), Some(Kind::ForeignOrigin), "{origin}");
            let old = Asked { version: Version::HTTP_10, host: Said::Nothing, ..asked };
            assert_eq!(kind(old), Some(Kind::ForeignOrigin), "{origin}");
        }
        assert_eq!(kind(Asked { origin: Said::Unclear, ..PLAIN }), Some(Kind::ForeignOrigin));
    }

    #[test]
    fn a_browser_that_says_so_is_refused_for_pages_of_other_sites_and_ports() {
        for (site, expected) in [
            ("none", None),
            ("same-origin", None),
            ("same-site", Some(Kind::ForeignOrigin)),
            ("cross-site", Some(Kind::ForeignOrigin)),
            ("Cross-Site", Some(Kind::ForeignOrigin)),
            ("", Some(Kind::ForeignOrigin)),
        ] {
            assert_eq!(kind(Asked { site: Said::Once(site), ..PLAIN }), expected, "{site}");
        }
        assert_eq!(kind(Asked { site: Said::Unclear, ..PLAIN }), Some(Kind::ForeignOrigin));
    }

    #[test]
    fn json_is_what_is_sent_as_json() {
        let sent = |kind: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, kind.parse().expect("a header"));
            check_json(&headers).is_ok()
        };
        for kind in
            ["application/json", "Application/JSON", "application/json; charset=utf-8", "application/json ;x"]
        {
            assert!(sent(kind), "{kind}");
        }
        for kind in
            ["text/plain", "text/plain; application/json", "application/x-www-form-urlencoded", "", "json"]
        {
            assert!(!sent(kind), "{kind}");
        }
        assert!(check_json(&HeaderMap::new()).is_err(), "a page can send bytes without a type");
    }

    proptest! {
        #[test]
        fn no_name_that_others_can_give_is_let_in(
            labels in proptest::collection::vec("[a-z0-9-]{1,12}", 2..5),
            port in proptest::option::of(any::<u16>()),
            dot in any::<bool>(),
        ) {
            let name = labels.join(".");
            prop_assume!(name != "n1.lab" && name.parse::<IpAddr>().is_err());
            let text = format!("{name}{}{}", if dot { "." } else { "" }, port.map(|port| format!(":{port}")).unwrap_or_default());
            let strange = checked(Asked { host: Said::Once(&text), ..PLAIN }).expect_err("a foreign name");
            prop_assert_eq!(strange, Strange::ForeignHost(name));
        }

        #[test]
        fn whatever_is_sent_is_judged_without_harm(
            host in ".{0,40}", origin in ".{0,40}", site in ".{0,12}", old in any::<bool>(),
        ) {
            let version = if old { Version::HTTP_10 } else { Version::HTTP_11 };
            let asked = Asked { version, target: None, host: Said::Once(&host), origin: Said::Once(&origin), site: Said::Once(&site) };
            if checked(asked).is_ok() {
                prop_assert!(matches!(site.as_str(), "none" | "same-origin"));
                prop_assert!(is_same(&origin, parsed(&host).as_ref()));
            }
        }

        #[test]
        fn a_page_of_another_port_is_of_another_origin(one in 1u16.., other in 1u16..) {
            let (host, origin) = (format!("localhost:{one}"), format!("http://localhost:{other}"));
            let asked = Asked { host: Said::Once(&host), origin: Said::Once(&origin), ..PLAIN };
            prop_assert_eq!(checked(asked).is_ok(), one == other);
        }
    }
}
