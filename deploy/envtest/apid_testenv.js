"use strict";
// A private API server for Node tests: one file, no dependencies.
//
//     const server = await Server.start();
//     config.loadFromFile(server.kubeconfig);
//     await server.stop();
//
// The program apid is $APID, or bin/apid beside this file, or apid on PATH. The server also ends with this process.
const { spawn } = require("node:child_process");
const fs = require("node:fs");
const path = require("node:path");

// Time in milliseconds from stop() until a server that has not ended is killed.
const STOP_TIMEOUT = 30000;

function program() {
  const packaged = path.join(__dirname, "bin", "apid");
  return process.env.APID || (fs.existsSync(packaged) ? packaged : "apid");
}

/** A running control plane with the names preset kubernetes. */
class Server {
  /** Starts a server with further flags of apid, and resolves when it is ready. */
  static start(...flags) {
    const child = spawn(program(), ["test-server", ...flags], { stdio: ["pipe", "pipe", "pipe"] });
    const server = new Server();
    server.child = child;
    server.logText = "";
    child.stderr.on("data", (chunk) => { server.logText = (server.logText + chunk).slice(-262144); });
    child.stdin.on("error", () => {});
    return new Promise((resolve, reject) => {
      let line = "";
      child.on("error", (error) => reject(new Error(`${program()}: ${error.message}; set APID to the path of apid`)));
      child.on("close", () => reject(new Error(`apid test-server did not start:\n${server.logText}`)));
      child.stdout.on("data", (chunk) => {
        line += chunk;
        if (!line.includes("\n") || server.url) return;
        const ready = JSON.parse(line);
        Object.assign(server, { kubeconfig: ready.kubeconfig, url: ready.server, token: ready.token,
          certificateAuthority: ready.certificateAuthority, directory: ready.directory });
        resolve(server);
      });
    });
  }

  /** Returns the log of the server. */
  log() { return this.logText; }

  /** Stops the server, which removes its files. */
  stop() {
    if (this.child.exitCode !== null) return Promise.resolve();
    return new Promise((resolve) => {
      const timer = setTimeout(() => this.child.kill("SIGKILL"), STOP_TIMEOUT);
      this.child.on("close", () => { clearTimeout(timer); resolve(); });
      this.child.stdin.end();
    });
  }
}

module.exports = { Server };
