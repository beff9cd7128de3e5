//! logs, exec, cp, attach and port-forward through apid to a kubelet, over SPDY and WebSocket.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;

use jiff::Timestamp;
use tests::harness::Options;

use super::super::cluster_node::ClusterNode;
use super::{Kubectl, RELEASES, installed};

/// The protocol of connections of kubectl.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    Spdy,
    WebSocket,
}

/// The transports of a release: 1.27 knows no WebSocket for streams.
fn transports(release: &str) -> &'static [Transport] {
    if release == "1.27" { &[Transport::Spdy] } else { &[Transport::Spdy, Transport::WebSocket] }
}

/// A node, and kubectl with one transport.
struct Session {
    node: Arc<ClusterNode>,
    kubectl: Kubectl,
    transport: Transport,
}

impl Session {
    fn command(&self, line: &str) -> Command {
        let mut command = self.kubectl.command(line);
        let on = if self.transport == Transport::WebSocket { "true" } else { "false" };
        command.env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", on).env("KUBECTL_PORT_FORWARD_WEBSOCKETS", on);
        command
    }

    /// Runs a command with bytes as its input. Returns its exit code, output and error output.
    fn run(&self, line: &str, stdin: &[u8]) -> (i32, Vec<u8>, String) {
        let mut command = self.command(line);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("kubectl starts");
        let (mut pipe, bytes) = (child.stdin.take().expect("a pipe"), stdin.to_vec());
        let writer = std::thread::spawn(move || drop(pipe.write_all(&bytes)));
        let output = child.wait_with_output().expect("kubectl exits");
        writer.join().expect("the writer ends");
        let code = output.status.code().unwrap_or(-1);
        (code, output.stdout, String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// Runs a command that must succeed.
    fn ok(&self, line: &str, stdin: &[u8]) -> Vec<u8> {
        let (code, out, err) = self.run(line, stdin);
        assert_eq!(code, 0, "{:?} kubectl {line}: {err}", self.transport);
        out
    }
}

/// Runs a session with each release and transport.
async fn with_each_transport(session: fn(&Session)) {
    for release in RELEASES {
        let Some(program) = installed(release) else { continue };
        let node = Arc::new(ClusterNode::start(Options::kubernetes()).await);
        for transport in transports(release) {
            let kubectl = Kubectl::new(program.clone(), release, &node.plane, "admin");
            let session_of = Session { node: Arc::clone(&node), kubectl, transport: *transport };
            let ended = tokio::task::spawn_blocking(move || session(&session_of)).await;
            if let Err(error) = ended {
                panic!("kubectl {release} over {transport:?}: {error}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_reads_and_follows_logs() {
    with_each_transport(|session| {
        let log = session.node.kubelet.add_container("default", "q", "c");
        let second = |second: i64| Timestamp::from_second(1_700_000_000 + second).expect("a time");
        if session.transport == Transport::Spdy {
            for number in 0..5 {
                log.push(second(number), &format!("line {number}"));
            }
            log.push_previous(second(0), "before the restart");
        }
        let text = |line: &str| String::from_utf8(session.ok(line, b"")).expect("text");
        assert!(text("logs q").starts_with("line 0\nline 1\n"));
        assert_eq!(text("logs q -p"), "before the restart\n");
        assert_eq!(text("logs q --limit-bytes=9"), "line 0\nli");
        assert!(text("logs q -c c --since-time=2023-11-14T22:13:23Z").starts_with("line 3\n"));
        assert_eq!(text("logs q --since=1s"), "");
        let timed = text("logs q --timestamps --limit-bytes=20");
        assert_eq!(timed, "2023-11-14T22:13:20Z");
        assert!(text("logs q --tail=1").ends_with('\n'));
        let (code, _, err) = session.run("logs p -c absent", b"");
        assert!(code != 0 && err.contains("container absent is not valid for pod p"), "{err}");

        let mut following = session.command("logs q -f --tail=1");
        let mut child = following.stdout(Stdio::piped()).spawn().expect("kubectl starts");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        assert!(lines.next().expect("a line").expect("text").starts_with("line "));
        log.push(second(100), "line later");
        assert_eq!(lines.next().expect("a line").expect("text"), "line later");
        child.kill().expect("kubectl runs");
        drop(child.wait());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_runs_commands_and_attaches() {
    with_each_transport(|session| {
        let (code, out, err) = session.run("exec p -c d -- sh -c 'echo out; echo err >&2; exit 3'", b"");
        assert_eq!((code, &out[..]), (3, &b"out\n"[..]), "{err}");
        assert!(err.contains("err\n") && err.contains("exit code 3"), "{err}");
        assert_eq!(session.ok("exec -i q -- cat", b"input"), b"input");
        let (code, _, err) = session.run("exec q -- /no/such/program", b"");
        assert!(code != 0 && err.contains("No such file"), "{err}");
        let attached = session.ok("attach -i q", b"to the main process\n");
        let attached = String::from_utf8_lossy(&attached);
        assert!(attached.contains("attached") && attached.contains("to the main process"), "{attached}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_runs_command_in_terminal() {
    with_each_transport(|session| {
        let inner =
            session.command("exec -it q -- sh -c 'test -t 0 && echo a terminal; read line; echo got $line'");
        let words: Vec<String> = std::iter::once(inner.get_program())
            .chain(inner.get_args())
            .map(|word| format!("'{}'", word.to_string_lossy()))
            .collect();
        let line = format!("stty rows 33 cols 77; exec {}", words.join(" "));
        let mut terminal = Command::new("script");
        terminal.args(["-qefc", &line, "/dev/null"]).env("HOME", session.kubectl.home());
        terminal.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let mut child = terminal
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("script starts");
        let mut stdin = child.stdin.take().expect("a pipe");
        let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut seen = String::new();
        while !seen.contains("a terminal") {
            let read = output.read_line(&mut seen).expect("text");
            assert!(read > 0, "{seen}");
        }
        stdin.write_all(b"typed\n").expect("script reads");
        output.read_to_string(&mut seen).expect("text");
        drop(stdin);
        assert!(child.wait().expect("script ends").success(), "{seen}");
        assert!(seen.contains("got typed"), "{seen}");
        let sizes = session.node.kubelet.terminal_sizes();
        assert!(sizes.iter().any(|size| size.contains("77") && size.contains("33")), "{sizes:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_copies_files() {
    with_each_transport(|session| {
        let folder = session.kubectl.home().join(format!("{:?}", session.transport));
        std::fs::create_dir_all(folder.join("container")).expect("a folder");
        let data = pseudo_random(3 << 20);
        std::fs::write(folder.join("file"), &data).expect("a file");
        let path = folder.display();
        session.ok(&format!("cp {path}/file q:{path}/container/file"), b"");
        assert!(std::fs::read(folder.join("container/file")).expect("a file") == data);
        session.ok(&format!("cp q:{path}/container/file {path}/back"), b"");
        assert!(std::fs::read(folder.join("back")).expect("a file") == data);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_forwards_ports() {
    with_each_transport(|session| {
        let forwarding = Forwarding::start(session);
        for number in 0..3 {
            let sent = format!("connection {number}");
            assert_eq!(forwarding.echo(sent.as_bytes()), sent.as_bytes());
        }
        // A port without a listener is an error of one connection only.
        let requests = session.node.kubelet.requests();
        assert!(
            requests.iter().any(|request| request.contains("/portForward/default/q SPDY/3.1")
                || request.contains("/portForward/default/q? SPDY/3.1")),
            "{requests:?}"
        );
    })
    .await;
}

/// 100 MB in both directions of an exec and of a port-forward, over SPDY and over WebSocket.
#[tokio::test(flavor = "multi_thread")]
async fn hundred_megabytes_pass_unchanged() {
    with_each_transport(|session| {
        let data = pseudo_random(100_000_000);
        let out = session.ok("exec -i q -- cat", &data);
        assert!(out == data, "{} of {} bytes of exec", out.len(), data.len());
        let out = Forwarding::start(session).echo(&data);
        assert!(out == data, "{} of {} bytes of port-forward", out.len(), data.len());
    })
    .await;
}

/// A running `kubectl port-forward` to a server that echoes.
struct Forwarding {
    child: std::process::Child,
    port: u16,
}

impl Forwarding {
    fn start(session: &Session) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let target = listener.local_addr().expect("an address").port();
        std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                std::thread::spawn(move || {
                    let mut reader = stream.try_clone().expect("a second handle");
                    drop(std::io::copy(&mut reader, &mut &stream));
                    drop(stream.shutdown(std::net::Shutdown::Write));
                });
            }
        });
        let mut command = session.command(&format!("port-forward pod/q :{target}"));
        let mut child = command.stdout(Stdio::piped()).spawn().expect("kubectl starts");
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().expect("a pipe")).read_line(&mut line).expect("text");
        // `Forwarding from 127.0.0.1:43210 -> 80`
        let port = line.split_once("127.0.0.1:").and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
        Forwarding { child, port: port.unwrap_or_else(|| panic!("{line:?}")) }
    }

    /// Sends bytes through the forwarded port, and returns what comes back.
    fn echo(&self, data: &[u8]) -> Vec<u8> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("the forwarded port");
        let (mut writer, sent) = (stream.try_clone().expect("a second handle"), data.to_vec());
        let sending = std::thread::spawn(move || {
            writer.write_all(&sent).expect("the port takes bytes");
        });
        let mut received = vec![0; data.len()];
        let read = stream.read_exact(&mut received);
        assert!(read.is_ok(), "{read:?}");
        sending.join().expect("all bytes are sent");
        received
    }
}

impl Drop for Forwarding {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Bytes that no compression or repetition can replace.
fn pseudo_random(count: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut bytes = Vec::with_capacity(count + 8);
    while bytes.len() < count {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(count);
    bytes
}
