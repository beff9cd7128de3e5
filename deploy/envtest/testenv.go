// Package testenv starts a private API server for Go tests: one file, standard library only.
//
//	server, err := testenv.Start()
//	defer server.Stop()
//	config, err := clientcmd.BuildConfigFromFlags("", server.Kubeconfig)
//
// The program apid is $APID, or apid on PATH. The server also ends when this process ends.
package testenv

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// stopTimeout is the time from Stop until a server that has not ended is killed.
const stopTimeout = 30 * time.Second

// Server is a running control plane with the names preset kubernetes.
type Server struct {
	// Kubeconfig is the path of the kubeconfig of an administrator.
	Kubeconfig string `json:"kubeconfig"`
	// URL is the address of the server.
	URL string `json:"server"`
	// Token is the bearer token of the administrator.
	Token string `json:"token"`
	// CertificateAuthority is the path of the CA bundle of the server.
	CertificateAuthority string `json:"certificateAuthority"`
	// Directory is the folder with all files of the server. It does not exist after Stop.
	Directory string `json:"directory"`

	command *exec.Cmd
	stdin   io.Closer
}

// Start starts a server with further flags of apid and waits until it is ready.
func Start(flags ...string) (*Server, error) {
	program := os.Getenv("APID")
	if program == "" {
		program = "apid"
	}
	command := exec.Command(program, append([]string{"test-server"}, flags...)...)
	var log bytes.Buffer
	command.Stderr = &log
	stdin, err := command.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := command.Start(); err != nil {
		return nil, err
	}
	server := &Server{command: command, stdin: stdin}
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, server)
	}
	if err != nil {
		_ = server.Stop()
		return nil, fmt.Errorf("apid test-server did not start: %w\n%s", err, log.String())
	}
	return server, nil
}

// Stop stops the server, which removes its files.
func (s *Server) Stop() error {
	_ = s.stdin.Close()
	timer := time.AfterFunc(stopTimeout, func() { _ = s.command.Process.Kill() })
	defer timer.Stop()
	return s.command.Wait()
}
