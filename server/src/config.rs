//! The settings of a node: flags, environment and a TOML file, merged into one checked [`Config`].
//!
//! Flags win over the environment, the environment over the file, the file over the defaults. Knows the names and
//! meanings of settings; opens nothing but the settings file.

mod page;

use std::fmt;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use shardd_api::duration::Span;
use shardd_api::exchange::ExchangeRate;
use shardd_api::local_transport::Share;
use shardd_api::node::NodeId;
use shardd_api::suggest::nearest;
use shardd_certificates::{Host, LIFETIME};
use shardd_store::stores::{BadEndpoint, StoreOptions, check_endpoint};
use shardfmt::size::ByteSize;
use toml::de::DeTable;

use crate::identity::{Cluster, JoinToken};
use crate::metastore::MetastoreUrl;

pub use page::{effective, template};

/// The default data directory.
pub const DEFAULT_DATA: &str = "shardd-data";
/// The default address of HTTP.
pub const DEFAULT_HTTP: &str = "127.0.0.1:7700";
/// The default address of QUIC: any free port of loopback.
pub const DEFAULT_QUIC: &str = "127.0.0.1:0";
/// The default space of the cache.
pub const DEFAULT_CACHE_SIZE: ByteSize = ByteSize(64 << 30);
/// How long a node that drains may take.
const GRACE: Duration = Duration::from_secs(90);

/// Below that there would be no time to try twice.
const SHORTEST_LIFE: Duration = Duration::from_secs(6);

/// The headings of the help.
const NODE: &str = "Node";
const STORE: &str = "Store and metadata";
const CACHE: &str = "Cache and exchange";
const SECURITY: &str = "Security";
const LOGGING: &str = "Logging";

/// Every setting of `shardd serve`, by the same name as flag (`--cache-size`), environment variable
/// (`SHARDD_CACHE_SIZE`) and key of the settings file (`cache-size`). The help of each ends with its default; a page of
/// settings is made of it.
#[derive(Clone, Debug, Default, PartialEq, clap::Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Settings {
    /// Directory for everything the node keeps: store, cache, metadata, certificate [default: shardd-data]
    #[arg(help_heading = NODE, long, value_name = "DIR", env = "SHARDD_DATA")]
    pub data: Option<PathBuf>,

    /// Name of this node in its cluster: a-z, 0-9 and '-', up to 40 characters [default: n1 for the first node, a name
    /// made from its key for one that joins]
    #[arg(help_heading = NODE, long, value_name = "NAME", env = "SHARDD_ID")]
    pub id: Option<NodeId>,

    /// Address of the HTTP API [default: 127.0.0.1:7700]
    #[arg(help_heading = NODE, long, value_name = "ADDR", env = "SHARDD_HTTP")]
    pub http: Option<SocketAddr>,

    /// Address for other nodes (UDP); port 0 takes a free one and keeps it over restarts [default: 127.0.0.1:0]
    #[arg(help_heading = NODE, long, value_name = "ADDR", env = "SHARDD_QUIC")]
    pub quic: Option<SocketAddr>,

    /// Durable store, as URL or directory [default: store/ in the data directory, or the first node's when joining]
    #[arg(help_heading = STORE, long, value_name = "URL", env = "SHARDD_STORE")]
    pub store: Option<String>,

    /// Address of the service of the store, where it is not the cloud's own, such as
    /// `https://minio.example.org:9000` [default: the cloud's own]
    #[arg(help_heading = STORE, long, value_name = "URL", env = "SHARDD_STORE_ENDPOINT")]
    pub store_endpoint: Option<String>,

    /// Region of the store's bucket [default: AWS_REGION, or us-east-1]
    #[arg(help_heading = STORE, long, value_name = "REGION", env = "SHARDD_STORE_REGION")]
    pub store_region: Option<String>,

    /// File of certificates (PEM) to trust at the store's service, beside the system's [default: none]
    #[arg(help_heading = STORE, long, value_name = "FILE", env = "SHARDD_STORE_CA")]
    pub store_ca: Option<PathBuf>,

    /// Access the store without credentials, for public buckets [default: false]
    #[arg(
        help_heading = STORE,
        long,
        env = "SHARDD_STORE_ANONYMOUS",
        value_name = "true|false",
        num_args = 0..=1,
        default_missing_value = "true"
    )]
    pub store_anonymous: Option<bool>,

    /// Limit of bytes a second to and from the store's service, such as 100MiB [default: no limit]
    #[arg(help_heading = STORE, long, value_name = "SIZE", env = "SHARDD_STORE_BANDWIDTH")]
    pub store_bandwidth: Option<ByteSize>,

    /// Where metadata is kept: `sled`, in the first node's data directory; `store`, in an object of the store; or etcd as
    /// `etcd://[USER@]HOST:PORT[,HOST:PORT…][/PREFIX][?ca=FILE&cert=FILE&key=FILE&password-file=FILE]`
    /// [default: sled, or that of the first node when joining]
    #[arg(help_heading = STORE, long, value_name = "URL", env = "SHARDD_METASTORE")]
    pub metastore: Option<String>,

    /// Space the cache may use, never exceeded [default: 64GiB]
    #[arg(help_heading = CACHE, long, value_name = "SIZE", env = "SHARDD_CACHE_SIZE")]
    pub cache_size: Option<ByteSize>,

    /// Space that caches and a store in a directory leave free on their disks, for metadata there [default:
    /// 1GiB, or a twentieth of a smaller disk]
    #[arg(help_heading = CACHE, long, value_name = "SIZE", env = "SHARDD_DISK_RESERVE")]
    pub disk_reserve: Option<ByteSize>,

    /// Where loaders of this machine connect to borrow grains of the cache: a Unix-domain socket, made when
    /// the node starts. Name a place that containers mount for those in them [default: shardd.sock in the
    /// data directory]
    #[arg(help_heading = CACHE, long, value_name = "FILE", env = "SHARDD_SOCKET")]
    pub socket: Option<PathBuf>,

    /// The form in which loaders of this machine get grains: the files of the cache, to be read; a ring of
    /// memory into which the requested grains are copied; or nothing, so that they are sent bytes over HTTP
    /// [default: files]
    #[arg(help_heading = CACHE, long, value_name = "files|ring|none", env = "SHARDD_SHARE")]
    pub share: Option<Share>,

    /// How fast the exchange may send: `auto` is as fast as the ranks read and no faster, a size such as 50MiB the same and at
    /// most this many bytes a second, `unlimited` without a limit [default: auto]
    #[arg(help_heading = CACHE, long, value_name = "auto|SIZE|unlimited", env = "SHARDD_EXCHANGE_RATE")]
    pub exchange_rate: Option<ExchangeRate>,

    /// Join the cluster of another node: its join token, or @ and the path of its join-token file [default:
    /// none]
    #[arg(help_heading = NODE, long, value_name = "TOKEN|@FILE", env = "SHARDD_JOIN")]
    pub join: Option<String>,

    /// File to write the ready line to once the node serves [default: none]
    #[arg(help_heading = NODE, long, value_name = "FILE", env = "SHARDD_READY_FILE")]
    pub ready_file: Option<PathBuf>,

    /// Action on SIGTERM: stop within 5 s, or first let other nodes take over what this one hosts, for
    /// machines that are taken away with a warning; a second signal stops at once [default: stop]
    #[arg(help_heading = NODE, long, value_name = "stop|drain", env = "SHARDD_ON_SIGTERM")]
    pub on_sigterm: Option<OnSigterm>,

    /// Time limit of --on-sigterm drain [default: 90s]
    #[arg(help_heading = NODE, long, value_name = "TIME", env = "SHARDD_GRACE")]
    pub grace: Option<Span>,

    /// Format of log lines on stderr [default: text]
    #[arg(help_heading = LOGGING, long, value_name = "text|json", env = "SHARDD_LOG_FORMAT")]
    pub log_format: Option<LogFormat>,

    /// Log level on stderr: error, warn, info or debug [default: info]
    #[arg(help_heading = LOGGING, long, value_name = "LEVEL", env = "SHARDD_LOG_LEVEL")]
    pub log_level: Option<LogLevel>,

    /// Serve https, with a certificate that the cluster's authority signed, or with --tls-cert [default: that
    /// of the first node when joining, else false]
    #[arg(
        help_heading = SECURITY,
        long,
        env = "SHARDD_TLS",
        value_name = "true|false",
        num_args = 0..=1,
        default_missing_value = "true"
    )]
    pub tls: Option<bool>,

    /// File of a certificate for https (PEM, its chain after it) in place of the cluster's; read again when it changes
    /// [default: none]
    #[arg(help_heading = SECURITY, long, value_name = "FILE", env = "SHARDD_TLS_CERT")]
    pub tls_cert: Option<PathBuf>,

    /// File of the key (PEM) to --tls-cert [default: none]
    #[arg(help_heading = SECURITY, long, value_name = "FILE", env = "SHARDD_TLS_KEY")]
    pub tls_key: Option<PathBuf>,

    /// More names and addresses under which clients reach this node over https, with commas between them
    /// [default: the address of --http, or of --quic where that is a wildcard]
    #[arg(help_heading = SECURITY, long, value_name = "HOST,…", env = "SHARDD_TLS_HOSTS")]
    pub tls_hosts: Option<Hosts>,

    /// More names and addresses under which this node may be asked while it asks for no token, with commas between them: those of
    /// proxies and probes [default: localhost, every address of this machine, and --tls-hosts]
    #[arg(help_heading = SECURITY, long, value_name = "HOST,…", env = "SHARDD_ALLOWED_HOSTS")]
    pub allowed_hosts: Option<Hosts>,

    /// Lifetime of the certificates that the first node signs; nodes renew them after two thirds [default:
    /// 30d]
    #[arg(help_heading = SECURITY, long, value_name = "TIME", env = "SHARDD_CERTIFICATE_LIFETIME")]
    pub certificate_lifetime: Option<Span>,

    /// Clients admitted over HTTP: all, or holders of a token [default: that of the first node when joining,
    /// else none]
    #[arg(help_heading = SECURITY, long, value_name = "none|tokens", env = "SHARDD_AUTH")]
    pub auth: Option<Auth>,

    /// Serve other machines without TLS, or without asking for tokens [default: false]
    #[arg(
        help_heading = SECURITY,
        long,
        env = "SHARDD_ALLOW_INSECURE_HTTP",
        value_name = "true|false",
        num_args = 0..=1,
        default_missing_value = "true"
    )]
    pub allow_insecure_http: Option<bool>,
}

/// How much is logged: everything of this importance and above.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Faults for a person to look at.
    Error,
    /// Also survived surprises.
    Warn,
    /// Also changes of state.
    #[default]
    Info,
    /// Also what explains a miss.
    Debug,
}

/// Who may ask over HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Auth {
    /// Anyone who reaches the address.
    None,
    /// Holders of a token that is good for the request.
    Tokens,
}

/// Hosts, written with commas between them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Hosts(pub Vec<Host>);

impl FromStr for Hosts {
    type Err = String;

    fn from_str(text: &str) -> Result<Hosts, String> {
        let hosts: Result<_, _> = text.split(',').map(|host| host.trim().parse()).collect();
        hosts.map(Hosts).map_err(|error: shardd_certificates::BadHost| error.to_string())
    }
}

impl TryFrom<String> for Hosts {
    type Error = String;

    fn try_from(text: String) -> Result<Hosts, String> {
        text.parse()
    }
}

impl From<Hosts> for String {
    fn from(hosts: Hosts) -> String {
        hosts.0.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    }
}

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line, for machines.
    Json,
}

/// A node's reaction to a request to terminate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnSigterm {
    /// It stops.
    #[default]
    Stop,
    /// It lets others take over its partitions, and then stops.
    Drain,
}

/// The settings of a node, complete and checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Directory for everything the node keeps.
    pub data: PathBuf,
    /// The name asked for; without one the identity decides.
    pub id: Option<NodeId>,
    /// Address of the HTTP API.
    pub http: SocketAddr,
    /// Address for other nodes; port 0 means a free one, kept over restarts.
    pub quic: SocketAddr,
    /// The durable store asked for; without one `<data>/store`, or the first node's.
    pub store: Option<String>,
    /// How the store is reached.
    pub store_options: StoreOptions,
    /// Where metadata is to be kept; without it where it is, or in the first node's sled.
    pub metastore: Option<MetastoreUrl>,
    /// Space the cache may use.
    pub cache_size: ByteSize,
    /// The bytes left free on the disks of cache and store; by default they follow from the disk's size.
    pub disk_reserve: Option<ByteSize>,
    /// Where loaders of this machine are to connect; without it in the data directory.
    pub socket: Option<PathBuf>,
    /// The lent share.
    pub share: Share,
    /// How fast the exchange may send.
    pub exchange_rate: ExchangeRate,
    /// The cluster to join.
    pub join: Option<JoinToken>,
    /// Where to write the ready line.
    pub ready_file: Option<PathBuf>,
    /// What SIGTERM does.
    pub on_sigterm: OnSigterm,
    /// How long that may take.
    pub grace: Duration,
    /// How log lines look.
    pub log_format: LogFormat,
    /// How much is logged.
    pub log_level: LogLevel,
    /// Whether HTTP is behind TLS; without it as the first node says, or not.
    pub tls: Option<bool>,
    /// A certificate of its own for that, and its key.
    pub tls_files: Option<TlsFiles>,
    /// Hosts under which clients reach this node.
    pub tls_hosts: Vec<Host>,
    /// More hosts under which it may be asked while it asks for no token.
    pub allowed_hosts: Vec<Host>,
    /// How long certificates are good that this node signs.
    pub certificate_lifetime: Duration,
    /// Who may ask over HTTP; without it as the first node says, or anyone.
    pub auth: Option<Auth>,
    /// Whether other machines are served whatever the protection.
    pub allow_insecure_http: bool,
    /// The action on the metadata at this start.
    pub metadata: AtStart,
}

/// The action on the metadata at a start. It holds for one start, and so is no setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct AtStart {
    /// Continue from the copy of the metadata in the store, where meta/ is gone or cannot be opened: even if
    /// the copy lacks the last changes. The present metadata is set aside
    #[arg(long)]
    pub recover: bool,

    /// Take over the metadata from the node that kept it and is lost, from its copy in the store. That node
    /// is fenced: if it comes back, it refuses to serve
    #[arg(long, conflicts_with = "recover")]
    pub promote: bool,
}

/// A certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate, and its chain.
    pub certificate: PathBuf,
    /// The key.
    pub key: PathBuf,
}

/// Why settings are refused; every message is one line that names the setting.
#[derive(Debug, thiserror::Error, PartialEq)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum ConfigError {
    /// The settings file cannot be read.
    #[error("settings file {path}: {reason}")]
    Unreadable { path: String, reason: String },
    /// The settings file is not TOML, has an unknown key or a bad value.
    #[error("settings file {path}, line {line}: {reason}")]
    BadFile { path: String, line: usize, reason: String },
    /// The token is not one, or its file cannot be read.
    #[error("--join: {0}")]
    BadToken(String),
    /// The metastore's URL is not one. It is not repeated, as there might be a password in it.
    #[error("--metastore: {0}")]
    BadMetastore(String),
    /// Other machines are served behind TLS, and for tokens.
    #[error(
        "--http {http} would serve other machines {without}; give {flags} too, or --allow-insecure-http on \
        a network you trust{or_join}"
    )]
    InsecureHttp { http: SocketAddr, without: &'static str, flags: &'static str, or_join: &'static str },
    /// The address of the store's service is none.
    #[error("--store-endpoint: {0}")]
    BadEndpoint(BadEndpoint),
    /// Others get the address of QUIC, where that of HTTP is a wildcard.
    #[error(
        "--http {0} is every address of this machine; name by --quic the one that others reach it under, or by --http itself"
    )]
    Nowhere(SocketAddr),
    /// One of the two files.
    #[error("--tls-cert and --tls-key belong together: give both, or neither")]
    HalfTls,
    /// A certificate for nothing.
    #[error("--tls false and --tls-cert exclude each other: leave one of them out")]
    TlsForNothing,
    /// Clocks are not so exact.
    #[error("--certificate-lifetime {0} is too short; at least 6s are needed")]
    ShortLife(Span),
    /// Other nodes cannot connect to a wildcard.
    #[error("other nodes cannot reach --quic {0}; name one address of this machine")]
    UnreachableQuic(SocketAddr),
    /// A cache of this size can hold nothing.
    #[error("--cache-size {0} is too small; at least 64 MiB are needed")]
    SmallCache(ByteSize),
}

impl Settings {
    /// Reads a settings file.
    ///
    /// # Errors
    /// [`ConfigError::Unreadable`] or [`ConfigError::BadFile`], naming file, line and key.
    pub fn from_file(path: &Path) -> Result<Settings, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|error| ConfigError::Unreadable {
            path: path.display().to_string(),
            reason: error.to_string(),
        })?;
        Settings::from_toml(&text, path)
    }

    fn from_toml(text: &str, path: &Path) -> Result<Settings, ConfigError> {
        let refused = |at: usize, reason: String| ConfigError::BadFile {
            path: path.display().to_string(),
            line: 1 + text[..at].matches('\n').count(),
            reason,
        };
        let wrong = |error: toml::de::Error| {
            let at = error.span().map_or(0, |span| span.start);
            refused(at, error.message().trim().replace('\n', "; "))
        };
        let known: Vec<String> = page::Known::all().into_iter().map(|known| known.key).collect();
        for key in DeTable::parse(text).map_err(wrong)?.get_ref().keys() {
            let (name, at) = (&**key.get_ref(), key.span().start);
            if !known.iter().any(|known| known == name) {
                let way_out = match nearest(name, known.iter().map(String::as_str)) {
                    Some(meant) => format!("is it `{meant}`?"),
                    None => "`shardd config show --default` lists all there are".to_owned(),
                };
                let name: String = name.chars().take(80).collect();
                return Err(refused(at, format!("there is no setting `{}`; {way_out}", name.escape_debug())));
            }
        }
        toml::from_str(text).map_err(wrong)
    }

    /// The defaults that are the same everywhere.
    #[must_use]
    pub fn defaults() -> Settings {
        let address = |text: &str| Some(text.parse().expect("a constant address"));
        Settings {
            data: Some(DEFAULT_DATA.into()),
            http: address(DEFAULT_HTTP),
            quic: address(DEFAULT_QUIC),
            cache_size: Some(DEFAULT_CACHE_SIZE),
            on_sigterm: Some(OnSigterm::default()),
            grace: Some(Span(GRACE)),
            share: Some(Share::default()),
            exchange_rate: Some(ExchangeRate::default()),
            log_format: Some(LogFormat::default()),
            log_level: Some(LogLevel::default()),
            certificate_lifetime: Some(Span(LIFETIME)),
            allow_insecure_http: Some(false),
            ..Settings::default()
        }
    }

    /// How many settings say something.
    #[must_use]
    pub fn count(&self) -> usize {
        self.to_table().len()
    }

    /// The given settings, by the names of the settings file.
    fn to_table(&self) -> toml::Table {
        toml::Table::try_from(self).expect("a setting is text, a number or a truth value")
    }

    /// These settings, completed by `fallback` where silent.
    #[must_use]
    pub fn or(self, fallback: Settings) -> Settings {
        Settings {
            data: self.data.or(fallback.data),
            id: self.id.or(fallback.id),
            http: self.http.or(fallback.http),
            quic: self.quic.or(fallback.quic),
            store: self.store.or(fallback.store),
            store_endpoint: self.store_endpoint.or(fallback.store_endpoint),
            store_region: self.store_region.or(fallback.store_region),
            store_ca: self.store_ca.or(fallback.store_ca),
            store_anonymous: self.store_anonymous.or(fallback.store_anonymous),
            store_bandwidth: self.store_bandwidth.or(fallback.store_bandwidth),
            metastore: self.metastore.or(fallback.metastore),
            cache_size: self.cache_size.or(fallback.cache_size),
            disk_reserve: self.disk_reserve.or(fallback.disk_reserve),
            socket: self.socket.or(fallback.socket),
            share: self.share.or(fallback.share),
            exchange_rate: self.exchange_rate.or(fallback.exchange_rate),
            join: self.join.or(fallback.join),
            ready_file: self.ready_file.or(fallback.ready_file),
            on_sigterm: self.on_sigterm.or(fallback.on_sigterm),
            grace: self.grace.or(fallback.grace),
            log_format: self.log_format.or(fallback.log_format),
            log_level: self.log_level.or(fallback.log_level),
            tls: self.tls.or(fallback.tls),
            tls_cert: self.tls_cert.or(fallback.tls_cert),
            tls_key: self.tls_key.or(fallback.tls_key),
            tls_hosts: self.tls_hosts.or(fallback.tls_hosts),
            allowed_hosts: self.allowed_hosts.or(fallback.allowed_hosts),
            certificate_lifetime: self.certificate_lifetime.or(fallback.certificate_lifetime),
            auth: self.auth.or(fallback.auth),
            allow_insecure_http: self.allow_insecure_http.or(fallback.allow_insecure_http),
        }
    }

    /// Fills in the defaults and checks what one setting alone cannot show.
    ///
    /// # Errors
    /// The first [`ConfigError`] found.
    pub fn resolve(self) -> Result<Config, ConfigError> {
        let known = "a default holds where nothing else does";
        let settings = self.or(Settings::defaults());
        let http = settings.http.expect(known);
        let quic = settings.quic.expect(known);
        if quic.ip().is_unspecified() {
            return Err(ConfigError::UnreachableQuic(quic));
        }
        let cache_size = settings.cache_size.expect(known);
        if cache_size.0 < 64 << 20 {
            return Err(ConfigError::SmallCache(cache_size));
        }
        let tls_files = match (settings.tls_cert, settings.tls_key) {
            (Some(_), Some(_)) if settings.tls == Some(false) => return Err(ConfigError::TlsForNothing),
            (Some(certificate), Some(key)) => Some(TlsFiles { certificate, key }),
            (None, None) => None,
            _ => return Err(ConfigError::HalfTls),
        };
        let lifetime = settings.certificate_lifetime.expect(known);
        if lifetime.0 < SHORTEST_LIFE {
            return Err(ConfigError::ShortLife(lifetime));
        }
        if let Some(endpoint) = &settings.store_endpoint {
            check_endpoint(endpoint).map_err(ConfigError::BadEndpoint)?;
        }
        let data = settings.data.expect(known);
        let join = settings.join.as_deref().map(|token| read_token(token, &data)).transpose()?.flatten();
        Ok(Config {
            data,
            id: settings.id,
            http,
            quic,
            store: settings.store,
            store_options: StoreOptions {
                endpoint: settings.store_endpoint,
                region: settings.store_region,
                ca: settings.store_ca,
                anonymous: settings.store_anonymous.unwrap_or(false),
                bandwidth: settings.store_bandwidth,
            },
            metastore: settings
                .metastore
                .map(|url| url.parse().map_err(ConfigError::BadMetastore))
                .transpose()?,
            cache_size,
            disk_reserve: settings.disk_reserve,
            socket: settings.socket,
            share: settings.share.expect(known),
            exchange_rate: settings.exchange_rate.expect(known),
            join,
            ready_file: settings.ready_file,
            on_sigterm: settings.on_sigterm.expect(known),
            grace: settings.grace.expect(known).0,
            log_format: settings.log_format.expect(known),
            log_level: settings.log_level.expect(known),
            tls: settings.tls.or(tls_files.is_some().then_some(true)),
            tls_files,
            tls_hosts: settings.tls_hosts.unwrap_or_default().0,
            allowed_hosts: settings.allowed_hosts.unwrap_or_default().0,
            certificate_lifetime: lifetime.0,
            auth: settings.auth,
            allow_insecure_http: settings.allow_insecure_http.expect(known),
            metadata: AtStart::default(),
        })
    }
}

impl Config {
    /// Refuses to serve other machines unprotected. `tls` and `tokens` say what holds in the node's cluster, if it has joined
    /// one.
    ///
    /// # Errors
    /// [`ConfigError::InsecureHttp`].
    pub fn check_protection(&self, tls: bool, tokens: bool) -> Result<(), ConfigError> {
        let tls = self.tls.unwrap_or(tls);
        let tokens = self.auth.map_or(tokens, |auth| auth == Auth::Tokens);
        let (without, flags) = match (tls, tokens) {
            _ if self.http.ip().is_loopback() => return Ok(()),
            _ if self.allow_insecure_http => return self.check_place(),
            (true, true) => return self.check_place(),
            (false, false) => ("without TLS and without asking for tokens", "--tls and --auth tokens"),
            (false, true) => ("without TLS", "--tls"),
            (true, false) => ("without asking for tokens", "--auth tokens"),
        };
        Err(ConfigError::InsecureHttp { http: self.http, without, flags, or_join: "" })
    }

    fn check_place(&self) -> Result<(), ConfigError> {
        match self.http.ip().is_unspecified() && self.quic.ip().is_loopback() {
            true => Err(ConfigError::Nowhere(self.http)),
            false => Ok(()),
        }
    }

    /// The hosts that the node's certificate is to be good for.
    #[must_use]
    pub fn hosts(&self) -> Vec<Host> {
        let http = match self.http.ip() {
            wildcard if wildcard.is_unspecified() => self.quic.ip(),
            address => address,
        };
        let mut hosts = vec![Host::Address(http)];
        if self.http.ip().is_loopback() || self.http.ip().is_unspecified() {
            let local = [Host::Address([127, 0, 0, 1].into()), Host::Name("localhost".to_owned())];
            hosts.extend(local);
        }
        hosts.extend(self.tls_hosts.iter().cloned());
        hosts.sort();
        hosts.dedup();
        hosts
    }
}

/// A token given as such, or as `@` and the path of a file that holds one. A node that has joined needs none any more, so that
/// its file may be gone.
fn read_token(text: &str, data: &Path) -> Result<Option<JoinToken>, ConfigError> {
    let token = match text.strip_prefix('@').map(|path| (path, std::fs::read_to_string(path))) {
        None => text.to_owned(),
        Some((_, Ok(token))) => token,
        Some((_, Err(error)))
            if error.kind() == ErrorKind::NotFound && Cluster::is_kept(&data.join("tls")) =>
        {
            return Ok(None);
        }
        Some((path, Err(error))) => return Err(ConfigError::BadToken(format!("{path}: {error}"))),
    };
    token.trim().parse().map(Some).map_err(|error| ConfigError::BadToken(format!("{error}")))
}

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> Result<Settings, ConfigError> {
        Settings::from_toml(text, Path::new("shardd.toml"))
    }

    #[test]
    fn flags_win_over_the_file_and_the_file_over_defaults() {
        let flags = Settings { http: Some("127.0.0.1:1".parse().unwrap()), ..Settings::default() };
        let file = file("http = \"127.0.0.1:2\"\ncache-size = \"1GiB\"\nid = \"left\"").unwrap();
        let config = flags.or(file).resolve().unwrap();
        assert_eq!(config.http, "127.0.0.1:1".parse().unwrap());
        assert_eq!(config.cache_size, ByteSize(1 << 30));
        assert_eq!(config.id.unwrap().to_string(), "left");
        assert_eq!(config.data, PathBuf::from(DEFAULT_DATA));
    }

    #[test]
    fn bad_input_is_refused_in_one_line_that_names_it() {
        let cases: &[(&str, &[&str])] = &[
            (
                "cach-size = \"1GiB\"",
                &["shardd.toml, line 1: there is no setting `cach-size`; is it `cache-size`?"],
            ),
            ("id = \"a\"\n\ncache_size = 1", &["line 3", "`cache-size`?"]),
            ("[replication]\nfactor = 3", &["line 1", "`replication`", "shardd config show --default"]),
            ("\nhttp = \"nowhere\"", &["line 2", "address"]),
            ("\n\ncache-size = \"many\"", &["line 3", "many"]),
            ("id = \"Not A Name\"", &["line 1", "Not A Name"]),
            ("http = 7700", &["line 1"]),
            ("log-format = \"xml\"", &["xml"]),
            ("http = ", &["line 1"]),
            ("cache-size = \"1KiB\"", &["--cache-size", "64 MiB"]),
            ("exchange-rate = \"0\"", &["line 1", "`auto`", "`unlimited`"]),
            ("\nexchange-rate = \"fast\"", &["line 2", "fast", "`auto`"]),
            ("tls-cert = \"a.pem\"", &["--tls-key"]),
            ("tls-cert = \"a.pem\"\ntls-key = \"a.key\"\ntls = false", &["--tls-cert", "--tls false"]),
            ("tls-hosts = \"a b\"", &["line 1", "a b"]),
            ("allowed-hosts = \"*\"", &["line 1", "\"*\""]),
            ("certificate-lifetime = \"5s\"", &["--certificate-lifetime 5s", "6s"]),
            ("quic = \"0.0.0.0:7701\"", &["--quic 0.0.0.0:7701"]),
            ("join = \"hello\"", &["--join"]),
            ("store-endpoint = \"10.77.0.9:9000\"", &["--store-endpoint", "http://"]),
            ("metastore = \"zookeeper://z\"", &["--metastore", "sled", "etcd://"]),
            ("metastore = \"etcd://me:secret@one\"", &["--metastore", "password-file="]),
            ("join = \"@/nowhere/at/all\"", &["--join", "/nowhere/at/all"]),
        ];
        for (text, wants) in cases {
            let error = file(text).and_then(Settings::resolve).expect_err(text).to_string();
            assert_eq!(error.lines().count(), 1, "{error}");
            for want in *wants {
                assert!(error.contains(want), "{text:?} gave {error:?}, without {want:?}");
            }
        }
    }

    #[test]
    fn other_machines_are_served_behind_tls_and_for_tokens_or_against_a_word() {
        let open = "http = \"10.0.0.1:7700\"\n";
        let check = |more: &str, tls: bool, tokens: bool| {
            let config = file(&format!("{open}{more}")).unwrap().resolve().unwrap();
            config.check_protection(tls, tokens).map_err(|error| error.to_string())
        };
        let refused = check("", false, false).unwrap_err();
        assert!(refused.contains("--http 10.0.0.1:7700"), "{refused}");
        assert!(refused.contains("--tls and --auth tokens") && refused.contains("--allow-insecure-http"));
        assert!(check("tls = true", false, false).unwrap_err().contains("give --auth tokens too"));
        assert!(check("auth = \"tokens\"", false, false).unwrap_err().contains("give --tls too"));
        assert!(check("tls = false", true, true).unwrap_err().contains("without TLS"));
        assert_eq!(check("", true, true), Ok(()), "a cluster that has both");
        assert_eq!(check("tls = true\nauth = \"tokens\"", false, false), Ok(()));
        assert_eq!(check("allow-insecure-http = true", false, false), Ok(()));
        let wildcard =
            file("http = \"0.0.0.0:7700\"\nallow-insecure-http = true").unwrap().resolve().unwrap();
        let refused = wildcard.check_protection(false, false).unwrap_err().to_string();
        assert!(refused.contains("every address of this machine") && refused.contains("--quic"), "{refused}");
    }

    #[test]
    fn a_certificate_is_good_where_clients_come_from() {
        let hosts = |text: &str| {
            let hosts = file(text).unwrap().resolve().unwrap().hosts();
            hosts.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(hosts(""), ["127.0.0.1", "localhost"]);
        let lab = "http = \"10.0.0.1:7700\"\ntls-hosts = \"n1.lab, 10.0.0.1\"";
        assert_eq!(hosts(lab), ["10.0.0.1", "n1.lab"]);
        let all = "http = \"0.0.0.0:7700\"\nquic = \"10.0.0.1:7701\"";
        assert_eq!(hosts(all), ["10.0.0.1", "127.0.0.1", "localhost"]);
    }
}
