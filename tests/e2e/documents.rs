//! The commands in README.md, docs/tour.md and docs/operations.md: each one runs, and prints what the page says.
//!
//! An indented line that begins with `$ ` is a command; the lines up to the next command are its output. `...` in an output
//! line stands for any text. Lines may be left out, but not reordered. The commands of a page share one shell and an empty
//! folder. A command that starts a server runs until the end of the page. [`NOT_RUN`] lists the other commands.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use prerequisites::etcd::{Release, installed_programs, programs};
use prerequisites::{repository, skip};
use tests::harness::program;

/// Begins of commands that the test does not run, with the reason.
const NOT_RUN: [(&str, &str); 4] = [
    (
        "deploy/up",
        "needs the programs of this repository; `e2e::deploy` runs it, this test the same command without it",
    ),
    ("apt install", "`deploy/packaging/test-debian` installs the packages"),
    ("kubectl apply -f /usr", "`deploy/packaging/test-debian` applies the file of the package"),
    (
        "systemctl",
        "systemd does not run in the test; `deploy/packaging/test-systemd` runs the units under systemd",
    ),
];

/// A command with its expected output.
#[derive(Debug, PartialEq, Eq)]
struct Step {
    line: usize,
    command: String,
    output: Vec<String>,
}

/// Reads the commands of a page.
fn steps(text: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut here_document: Option<String> = None;
    let mut is_open = false;
    for (number, line) in text.lines().enumerate() {
        let Some(code) = line.strip_prefix("    ") else {
            // A blank line ends neither a command nor its output.
            is_open = is_open && line.trim().is_empty();
            if !line.trim().is_empty() {
                here_document = None;
            }
            continue;
        };
        if let (Some(end), Some(step)) = (&here_document, steps.last_mut()) {
            step.command.push('\n');
            step.command.push_str(code);
            if code == end {
                here_document = None;
            }
            continue;
        }
        if let Some(command) = code.strip_prefix("$ ") {
            steps.push(Step { line: number + 1, command: command.to_owned(), output: Vec::new() });
            here_document = end_of_here_document(command);
            is_open = true;
        } else if let Some(step) = steps.last_mut().filter(|_| is_open) {
            if step.command.ends_with('\\') {
                step.command.push('\n');
                step.command.push_str(code);
            } else {
                step.output.push(code.trim().to_owned());
            }
        }
    }
    steps
}

/// Returns the line that ends the here document of a command.
fn end_of_here_document(command: &str) -> Option<String> {
    let (_, rest) = command.split_once("<<")?;
    let word = rest.trim_start_matches('\'');
    let end = word.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(word.len());
    word.get(..end).filter(|word| !word.is_empty()).map(str::to_owned)
}

/// Whether a line of output contains the parts of an expected line in order.
fn matches(expected: &str, line: &str) -> bool {
    let normalized = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let (expected, line) = (normalized(expected), normalized(line));
    let mut rest = line.as_str();
    let parts: Vec<&str> = expected.split("...").map(str::trim).collect();
    parts.iter().all(|part| match rest.find(part) {
        Some(position) => {
            rest = &rest[position + part.len()..];
            true
        }
        None => false,
    })
}

/// Returns the first expected line that the output lacks.
fn missing<'s>(step: &'s Step, output: &str) -> Option<&'s String> {
    let mut lines = output.lines();
    step.output.iter().find(|expected| !lines.by_ref().any(|line| matches(expected, line)))
}

fn starts_server(command: &str) -> bool {
    command.starts_with("apid up")
}

/// Whether a command belongs to the trial of several apids, which needs etcd.
fn needs_etcd(command: &str) -> bool {
    ["trial", "etcdctl"].iter().any(|word| command.contains(word))
}

/// A shell with the programs on PATH, and the servers that the page started.
struct Session {
    folder: tempfile::TempDir,
    path: String,
    shell: Child,
    output: BufReader<std::process::ChildStdout>,
    servers: Vec<Child>,
}

impl Session {
    fn start() -> Session {
        let folder = tempfile::tempdir().expect("a folder");
        let programs = program("apid").parent().expect("the folder of the programs").display().to_string();
        let plugins = repository().join("deploy").display().to_string();
        let etcd = installed_programs(Release::Current);
        let etcd = etcd.map(|folder| format!(":{}", folder.display())).unwrap_or_default();
        let path = format!("{programs}:{plugins}:{}{etcd}", std::env::var("PATH").unwrap_or_default());
        let mut shell = command("bash", folder.path(), &path)
            .args(["--norc", "-m"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("bash starts");
        let output = BufReader::new(shell.stdout.take().expect("its output"));
        let mut session = Session { folder, path, shell, output, servers: Vec::new() };
        session.run("exec 2>&1");
        session
    }

    /// Runs a command in the shell and returns its output.
    fn run(&mut self, text: &str) -> String {
        const END: &str = "@@end-of-command@@";
        let input = self.shell.stdin.as_mut().expect("its input");
        writeln!(input, "{text}\necho; echo {END}").expect("the shell reads");
        let mut output = String::new();
        while !output.ends_with(&format!("{END}\n")) {
            let count = self.output.read_line(&mut output).expect("the shell writes");
            assert!(count > 0, "the shell ended: {text}: {output}");
        }
        output.trim_end().trim_end_matches(END).to_owned()
    }

    /// Starts a server in its own process and returns what it prints until it is ready.
    fn start_server(&mut self, text: &str) -> String {
        let mut words = text.split_whitespace();
        let mut server = command(words.next().unwrap_or_default(), self.folder.path(), &self.path)
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the server starts");
        let mut lines = BufReader::new(server.stdout.take().expect("its output"));
        self.servers.push(server);
        let mut output = String::new();
        while !output.lines().last().unwrap_or_default().starts_with("Ctrl-C") {
            let count = lines.read_line(&mut output).expect("the server writes");
            assert!(count > 0, "the server ended: {output}");
        }
        // Later lines must not block the server.
        std::thread::spawn(move || lines.read_to_end(&mut Vec::new()));
        output
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        for server in &mut self.servers {
            let pid = rustix::process::Pid::from_child(server);
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
            let _ = server.wait();
        }
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

fn command(name: &str, folder: &Path, path: &str) -> Command {
    let file = std::env::split_paths(path).map(|dir| dir.join(name)).find(|file| file.is_file());
    let mut command = Command::new(file.unwrap_or_else(|| PathBuf::from(name)));
    command.current_dir(folder).env("PATH", path).env("HOME", folder).env_remove("KUBECONFIG");
    command
}

#[test]
fn commands_in_documents_run_and_print_the_documented_output() {
    if Command::new("kubectl").arg("version").arg("--client").output().is_err() {
        return skip("kubectl", "no kubectl on PATH");
    }
    if std::net::TcpListener::bind("127.0.0.1:6443").is_err() {
        return skip("port-6443", "another process listens on the port that the documents name");
    }
    let mut unused: Vec<&str> = NOT_RUN.iter().map(|(begin, _)| *begin).collect();
    for page in ["README.md", "docs/tour.md", "docs/operations.md"] {
        let text = fs::read_to_string(repository().join(page)).expect("the page");
        let mut session = Session::start();
        let mut count = 0;
        for step in steps(&text) {
            if let Some((begin, _)) = NOT_RUN.iter().find(|(begin, _)| step.command.starts_with(begin)) {
                unused.retain(|other| other != begin);
                if *begin == "deploy/up" {
                    let output = session.start_server(&step.command.replace("deploy/up", "apid up"));
                    assert_eq!(missing(&step, &output), None, "{page}:{}: {output}", step.line);
                }
                continue;
            }
            if needs_etcd(&step.command) && programs(Release::Current).is_none() {
                continue;
            }
            let output = match starts_server(&step.command) {
                true => session.start_server(&step.command),
                false => session.run(&step.command),
            };
            let missing = missing(&step, &output);
            assert_eq!(missing, None, "{page}:{}: {}\nprinted\n{output}", step.line, step.command);
            count += 1;
        }
        assert!(count >= 2, "{page}: {count} commands");
    }
    assert_eq!(unused, [""; 0], "a begin in NOT_RUN is of no command");
}

#[test]
fn commands_and_their_outputs_are_read_from_a_page() {
    let page = "text\n\n    $ one --flag\n    first ...\n\n    $ two <<'END'\n    body\n    $ no command\n    END\n    out\n\n\
                Text.\n\n    no output\n    $ three \\\n        --more\n    done\n";
    let step = |line, command: &str, output: &[&str]| Step {
        line,
        command: command.to_owned(),
        output: output.iter().map(|line| (*line).to_owned()).collect(),
    };
    assert_eq!(
        steps(page),
        [
            step(3, "one --flag", &["first ..."]),
            step(6, "two <<'END'\nbody\n$ no command\nEND", &["out"]),
            step(15, "three \\\n    --more", &["done"]),
        ]
    );
    assert!(matches("a ... c", "x a b  c") && !matches("a ... c", "a b") && !matches("c ... a", "a c"));
    let expected = step(1, "x", &["one", "three"]);
    assert_eq!(missing(&expected, "one\ntwo\nthree\n"), None);
    assert_eq!(missing(&expected, "three\none\n"), Some(&"three".to_owned()));
}
