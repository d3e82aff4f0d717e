//! Credentials of Amazon S3 from the profile files of its own tools (`~/.aws/credentials`, `~/.aws/config`): keys
//! that stand there, the output of a `credential_process`, or, in a build with the feature `aws-profiles`, what
//! services give for a role or a session. Files are read again when they change; the rest is renewed before it expires.
//!
//! The forms are those of the [AWS SDKs and Tools Reference Guide](https://docs.aws.amazon.com/sdkref/latest/guide/file-format.html)
//! and of [process credentials](https://docs.aws.amazon.com/sdkref/latest/guide/feature-process-credentials.html).

#[cfg(feature = "aws-profiles")]
mod requests;
mod settings;

use std::env;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arrow::compute::kernels::cast_utils::string_to_timestamp_nanos;
use async_trait::async_trait;
use object_store::aws::AwsCredential;
use object_store::{Certificate, CredentialProvider, Error};
use serde::Deserialize;
use tokio::process::Command;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};
use tracing::warn;

use self::settings::{Files, Source};

/// Credentials that expire within this time are renewed.
const EARLY: Duration = Duration::from_secs(5 * 60);
/// A process that prints credentials may have to ask someone.
const TIMEOUT: Duration = Duration::from_secs(60);
/// After a renewal that failed, credentials that are still valid are used for this time before the next one.
const PAUSE: Duration = Duration::from_secs(30);
/// Whether this build asks services for credentials.
const MAKES_REQUESTS: bool = cfg!(feature = "aws-profiles");

/// A profile of the user.
pub(super) struct Profile {
    name: String,
    paths: [PathBuf; 2],
    region: Option<String>,
    endpoint: Option<String>,
    certificates: Vec<Certificate>,
    held: Mutex<Held>,
}

/// The credentials at hand. Who renews them has the lock, so there is one renewal at a time.
#[derive(Default)]
struct Held {
    given: Option<Given>,
    failed: Option<Instant>,
}

/// Credentials, good as long as the files are of this age and they have not expired.
struct Given {
    credential: Arc<AwsCredential>,
    ages: Ages,
    expires: Option<SystemTime>,
}

type Ages = [Option<SystemTime>; 2];

/// The output of a `credential_process`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Printed {
    version: u32,
    access_key_id: String,
    secret_access_key: String,
    session_token: Option<String>,
    expiration: Option<String>,
}

/// Why a profile gives no credentials.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProfileError {
    #[error("profile {name:?} is not in {files}; check AWS_PROFILE")]
    Missing { name: String, files: String },
    #[error("{}: not a file of profiles ({reason}); correct it", .path.display())]
    File { path: PathBuf, reason: String },
    #[error(
        "profile {name:?} has neither keys nor a credential_process, role_arn or sso_session; give it one: credential_process = aws configure export-credentials --profile {name} --format process"
    )]
    NoKeys { name: String },
    #[error("credential_process of profile {name:?} {reason}; run it by hand to see why")]
    Process { name: String, reason: String },
    /// This build does not make the requests that it takes.
    #[error(
        "profile {name:?} has {setting}, which takes {needed}; add to it: credential_process = aws configure export-credentials --profile {name} --format process"
    )]
    NotBuilt { name: String, setting: &'static str, needed: &'static str },
    /// A person has to enter a code.
    #[error(
        "profile {name:?} needs a code of the MFA device in profile {of:?} (mfa_serial); unset AWS_PROFILE and run: eval \"$(aws configure export-credentials --profile {name} --format env)\""
    )]
    Mfa { name: String, of: String },
    /// A service refuses, or does not answer.
    #[cfg_attr(not(feature = "aws-profiles"), expect(dead_code, reason = "no service is asked"))]
    #[error("{setting} of profile {name:?} gives no credentials ({reason}); {way_out}")]
    Refused { name: String, setting: &'static str, reason: String, way_out: String },
}

impl Profile {
    /// The profile to go by: the one that AWS_PROFILE names; without it the default one, if there is one and the
    /// environment has no keys. Services that it names are trusted with these certificates, too.
    pub(super) fn of_user(certificates: &[Certificate]) -> Option<Result<Profile, ProfileError>> {
        let chosen = set("AWS_PROFILE");
        let has_keys = ["AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_SKIP_SIGNATURE"];
        if chosen.is_none() && has_keys.iter().any(|name| set(name).is_some()) {
            return None;
        }
        let home = set("HOME").map(PathBuf::from).unwrap_or_default().join(".aws");
        let file = |variable, name| set(variable).map_or_else(|| home.join(name), PathBuf::from);
        let files = [file("AWS_SHARED_CREDENTIALS_FILE", "credentials"), file("AWS_CONFIG_FILE", "config")];
        let name = chosen.clone().unwrap_or_else(|| "default".to_owned());
        match Profile::open(name, files, certificates.to_vec()) {
            // No setting asks for it.
            Err(ProfileError::Missing { .. } | ProfileError::NoKeys { .. }) if chosen.is_none() => None,
            opened => Some(opened),
        }
    }

    fn open(
        name: String,
        paths: [PathBuf; 2],
        certificates: Vec<Certificate>,
    ) -> Result<Profile, ProfileError> {
        let held = Mutex::default();
        let mut profile = Profile { name, paths, region: None, endpoint: None, certificates, held };
        let files = profile.read()?;
        profile.source(&files, MAKES_REQUESTS)?;
        if let Some(settings) = files.profile(&profile.name) {
            profile.region = settings.get("region").map(str::to_owned);
            profile.endpoint = settings.get("endpoint_url").map(str::to_owned);
        }
        Ok(profile)
    }

    pub(super) fn region(&self) -> Option<String> {
        self.region.clone()
    }

    pub(super) fn endpoint(&self) -> Option<String> {
        self.endpoint.clone()
    }

    fn read(&self) -> Result<Files, ProfileError> {
        let [credentials, config] =
            self.paths.each_ref().map(|path| fs::read_to_string(path).unwrap_or_default());
        Files::parse(credentials, config)
            .map_err(|(number, reason)| ProfileError::File { path: self.paths[number].clone(), reason })
    }

    /// How it gives credentials, as the files are.
    fn source(&self, files: &Files, makes_requests: bool) -> Result<Source, ProfileError> {
        let name = self.name.clone();
        let Some(settings) = files.profile(&name) else {
            let files = self.paths.each_ref().map(|path| path.display().to_string()).join(" or ");
            return Err(ProfileError::Missing { name, files });
        };
        let source = settings.source(&name, makes_requests);
        let source = source.ok_or_else(|| ProfileError::NoKeys { name: name.clone() })?;
        let Source::Requests(setting) = source else { return Ok(source) };
        let chain = files.chain(&self.name);
        let has_login = chain.last().is_some_and(|(_, link)| link.get("login_session").is_some());
        let asks = |link: &settings::Settings<'_>| {
            link.get("role_arn").is_some() && link.get("mfa_serial").is_some()
        };
        if let Some((of, _)) = chain.iter().find(|(_, link)| asks(link)) {
            return Err(ProfileError::Mfa { name, of: (*of).to_owned() });
        }
        match (has_login, makes_requests) {
            (true, _) => Err(ProfileError::NotBuilt { name, setting, needed: "the tools of Amazon" }),
            (false, false) => {
                let needed = "a build with the feature aws-profiles, or the tools of Amazon";
                Err(ProfileError::NotBuilt { name, setting, needed })
            }
            (false, true) => Ok(source),
        }
    }

    async fn renew(&self) -> Result<Given, ProfileError> {
        // Looked at before they are read: a change between is seen the next time.
        let ages = self.ages();
        let files = self.read()?;
        let (credential, expires) = match self.source(&files, MAKES_REQUESTS)? {
            Source::Keys { key_id, secret_key, token } => (AwsCredential { key_id, secret_key, token }, None),
            Source::Process(command) => self.run(&command).await?,
            Source::Requests(setting) => self.request(setting, &files).await?,
        };
        Ok(Given { credential: Arc::new(credential), ages, expires })
    }

    async fn run(&self, command: &str) -> Result<(AwsCredential, Option<SystemTime>), ProfileError> {
        let failed = |reason: String| ProfileError::Process { name: self.name.clone(), reason };
        let running = Command::new("sh")
            .args(["-c", command])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .output();
        let output = timeout(TIMEOUT, running).await;
        let output = output.map_err(|_| failed(format!("takes longer than {TIMEOUT:?}")))?;
        let output = output.map_err(|error| failed(format!("cannot be run ({error})")))?;
        if !output.status.success() {
            return Err(failed(format!("has failed ({})", output.status)));
        }
        // Its output is secret: an error names only the place.
        let printed: Printed = serde_json::from_slice(&output.stdout)
            .map_err(|error| failed(format!("prints no credentials (line {})", error.line())))?;
        if printed.version != 1 {
            return Err(failed(format!("prints version {}, not 1", printed.version)));
        }
        let expires = match &printed.expiration {
            None => None,
            Some(text) => Some(moment(text).ok_or_else(|| failed(format!("prints {text:?} as a time")))?),
        };
        let credential = AwsCredential {
            key_id: printed.access_key_id,
            secret_key: printed.secret_access_key,
            token: printed.session_token,
        };
        Ok((credential, expires))
    }

    #[cfg(feature = "aws-profiles")]
    async fn request(
        &self,
        setting: &'static str,
        files: &Files,
    ) -> Result<(AwsCredential, Option<SystemTime>), ProfileError> {
        let region = ["AWS_REGION", "AWS_DEFAULT_REGION"].into_iter().find_map(set);
        let region = region.or_else(|| self.region()).unwrap_or_else(|| "us-east-1".to_owned());
        requests::request(&self.name, region, &self.certificates).await.map_err(|reason| {
            let chain = files.chain(&self.name);
            let last = chain.last().map_or(self.name.as_str(), |(name, _)| name);
            let way_out = requests::way_out(&reason, &self.name, last);
            ProfileError::Refused { name: self.name.clone(), setting, reason, way_out }
        })
    }

    #[cfg(not(feature = "aws-profiles"))]
    #[expect(clippy::unused_async, reason = "the same call as in a build that makes requests")]
    async fn request(
        &self,
        setting: &'static str,
        _: &Files,
    ) -> Result<(AwsCredential, Option<SystemTime>), ProfileError> {
        let _ = &self.certificates;
        unreachable!("a build without requests has refused {setting} of profile {:?}", self.name)
    }

    fn ages(&self) -> Ages {
        self.paths.each_ref().map(|path| age(path))
    }
}

impl Given {
    /// Whether they hold for this time at least.
    fn lasts(&self, time: Duration) -> bool {
        self.expires.is_none_or(|expires| SystemTime::now() + time < expires)
    }
}

#[async_trait]
impl CredentialProvider for Profile {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let mut held = self.held.lock().await;
        let ages = self.ages();
        let has_failed = held.failed.is_some_and(|failed| failed.elapsed() < PAUSE);
        let valid = held.given.as_ref().filter(|given| given.ages == ages && given.lasts(Duration::ZERO));
        if let Some(given) = valid.filter(|given| has_failed || given.lasts(EARLY)) {
            return Ok(given.credential.clone());
        }
        match (self.renew().await, valid) {
            (Ok(given), _) => {
                let credential = given.credential.clone();
                *held = Held { given: Some(given), failed: None };
                Ok(credential)
            }
            (Err(error), Some(given)) => {
                warn!(profile = self.name, %error, "credentials are not renewed; those at hand have not expired yet");
                let credential = given.credential.clone();
                held.failed = Some(Instant::now());
                Ok(credential)
            }
            (Err(error), None) => {
                Err(Error::Unauthenticated { path: format!("profile {}", self.name), source: error.into() })
            }
        }
    }
}

impl fmt::Debug for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Profile").field("name", &self.name).finish_non_exhaustive()
    }
}

fn set(variable: &str) -> Option<String> {
    env::var(variable).ok().filter(|value| !value.is_empty())
}

fn age(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|meta| meta.modified()).ok()
}

/// A moment as RFC 3339 has it.
fn moment(text: &str) -> Option<SystemTime> {
    let nanoseconds = string_to_timestamp_nanos(text).ok()?;
    Some(SystemTime::UNIX_EPOCH + Duration::from_nanos(nanoseconds.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    fn profile(home: &TempDir, name: &str) -> Result<Profile, ProfileError> {
        Profile::open(
            name.to_owned(),
            ["credentials", "config"].map(|file| home.path().join(file)),
            Vec::new(),
        )
    }

    async fn key(profile: &Profile) -> String {
        profile.get_credential().await.expect("credentials").key_id.clone()
    }

    #[tokio::test]
    async fn keys_are_those_that_the_files_have_now() {
        let home = TempDir::new().expect("a temporary directory");
        let credentials = home.path().join("credentials");
        let write = |key: &str| {
            let text = format!(
                "[default]\naws_access_key_id=other\n\n# mine\n[me]\naws_access_key_id = {key}\naws_secret_access_key = a#b;c=d\n"
            );
            fs::write(&credentials, text).expect("written");
        };
        write("one");
        fs::write(home.path().join("config"), "[profile me]\nregion = mars-1\nendpoint_url = http://x:1\n")
            .expect("written");
        let me = profile(&home, "me").expect("keys");
        assert_eq!((me.region(), me.endpoint()), (Some("mars-1".to_owned()), Some("http://x:1".to_owned())));
        let credential = me.get_credential().await.expect("credentials");
        assert_eq!((credential.key_id.as_str(), credential.secret_key.as_str()), ("one", "a#b;c=d"));
        write("two");
        let later = SystemTime::now() + Duration::from_secs(5);
        fs::File::options()
            .write(true)
            .open(&credentials)
            .and_then(|file| file.set_modified(later))
            .expect("dated");
        assert_eq!(key(&me).await, "two");
        let missing = profile(&home, "you").expect_err("no such profile").to_string();
        assert!(missing.contains("\"you\"") && missing.contains("AWS_PROFILE"), "{missing}");
        let lacking = profile(&home, "default").expect_err("half a key").to_string();
        assert!(lacking.contains("export-credentials"), "{lacking}");
    }

    #[tokio::test]
    async fn a_process_is_asked_again_when_what_it_gave_expires() {
        let home = TempDir::new().expect("a temporary directory");
        let asked = home.path().join("asked");
        let of = |name: &str, expiration: &str| {
            let text = format!(
                "[profile {name}]\ncredential_process = echo x >> {0} && echo '{{\"Version\": 1, \"AccessKeyId\": \"'$(wc -l < {0})'\", \"SecretAccessKey\": \"s\"{expiration}}}'\n",
                asked.display()
            );
            fs::write(home.path().join("config"), text).expect("written");
            profile(&home, name).expect("a process")
        };
        let lasting = of("lasting", ", \"Expiration\": \"2100-01-01T00:00:00Z\"");
        assert_eq!((key(&lasting).await, key(&lasting).await), ("1".to_owned(), "1".to_owned()));
        let expired = of("expired", ", \"Expiration\": \"2020-01-01T00:00:00Z\"");
        assert_eq!((key(&expired).await, key(&expired).await), ("2".to_owned(), "3".to_owned()));
        let text = "[profile broken]\ncredential_process = echo my secret; exit 3\n";
        fs::write(home.path().join("config"), text).expect("written");
        let broken = profile(&home, "broken").expect("a process");
        let error = broken.get_credential().await.expect_err("no credentials");
        let text = crate::causes::last_cause(&error);
        assert!(text.contains("exit status: 3") && !text.contains("secret"), "{text}");
    }

    #[tokio::test]
    async fn many_requests_at_a_time_renew_credentials_once() {
        let home = TempDir::new().expect("a temporary directory");
        let asked = home.path().join("asked");
        let text = format!(
            "[profile me]\ncredential_process = echo x >> {} && sleep 0.1 && echo '{{\"Version\": 1, \"AccessKeyId\": \"k\", \"SecretAccessKey\": \"s\", \"Expiration\": \"2100-01-01T00:00:00Z\"}}'\n",
            asked.display()
        );
        fs::write(home.path().join("config"), text).expect("written");
        let me = profile(&home, "me").expect("a process");
        let keys = futures::future::join_all((0..20).map(|_| key(&me))).await;
        assert!(keys.iter().all(|key| key == "k"), "{keys:?}");
        assert_eq!(fs::read_to_string(&asked).expect("it ran"), "x\n");
    }

    #[tokio::test]
    async fn credentials_that_have_not_expired_outlive_a_renewal_that_fails() {
        let home = TempDir::new().expect("a temporary directory");
        let (asked, broken) = (home.path().join("asked"), home.path().join("broken"));
        let of = |lifetime: &str| {
            let text = format!(
                "[profile me]\ncredential_process = echo x >> {} && test ! -e {} && echo '{{\"Version\": 1, \"AccessKeyId\": \"k\", \"SecretAccessKey\": \"s\", \"Expiration\": \"'$(date -u -d '{lifetime}' +%FT%TZ)'\"}}'\n",
                asked.display(),
                broken.display()
            );
            fs::write(home.path().join("config"), text).expect("written");
            profile(&home, "me").expect("a process")
        };
        let runs = || fs::read_to_string(&asked).expect("it ran").lines().count();
        // Within the five minutes in which they are renewed, and not expired.
        let me = of("4 minutes");
        assert_eq!((key(&me).await.as_str(), key(&me).await.as_str(), runs()), ("k", "k", 2));
        fs::write(&broken, "").expect("written");
        assert_eq!((key(&me).await.as_str(), key(&me).await.as_str(), runs()), ("k", "k", 3));
        tokio::time::pause();
        tokio::time::advance(PAUSE).await;
        tokio::time::resume();
        assert_eq!((key(&me).await.as_str(), runs()), ("k", 4));
        fs::remove_file(&broken).expect("it is there");
        let me = of("-1 minute");
        assert_eq!(key(&me).await, "k");
        fs::write(&broken, "").expect("written");
        me.get_credential().await.expect_err("they have expired");
    }

    #[test]
    fn a_build_that_makes_no_requests_names_the_profile_its_setting_and_both_ways_out() {
        let home = TempDir::new().expect("a temporary directory");
        let refused = |settings: &str, makes_requests| {
            let text = format!("[profile me]\n{settings}\n[profile base]\nlogin_session = x\n");
            fs::write(home.path().join("config"), text).expect("written");
            let paths = ["credentials", "config"].map(|file| home.path().join(file));
            let held = Mutex::default();
            let (region, endpoint, certificates) = (None, None, Vec::new());
            let me = Profile { name: "me".to_owned(), paths, region, endpoint, certificates, held };
            let files = me.read().expect("files");
            me.source(&files, makes_requests).expect_err("it takes requests").to_string()
        };
        for (settings, named) in [
            ("role_arn = r\nsource_profile = you", "has role_arn"),
            ("role_arn = r\nweb_identity_token_file = f", "has web_identity_token_file"),
            ("sso_session = s", "has sso_session"),
            ("sso_start_url = u", "has sso_start_url"),
        ] {
            let said = refused(settings, false);
            for part in ["profile \"me\"", named, "aws-profiles", "export-credentials --profile me"] {
                assert!(said.contains(part), "{part}: {said}");
            }
        }
        // What Amazon's own tools alone can do, whatever the build.
        for makes_requests in [false, true] {
            let said = refused("role_arn = r\nsource_profile = base", makes_requests);
            assert!(said.contains("export-credentials") && !said.contains("aws-profiles"), "{said}");
            let said = refused("role_arn = r\nsource_profile = you\nmfa_serial = d", makes_requests);
            assert!(
                said.contains("MFA device in profile \"me\"") && said.contains("unset AWS_PROFILE"),
                "{said}"
            );
        }
    }
}
