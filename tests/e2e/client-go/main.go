// Sessions of unmodified client-go, with a server whose kubeconfig file is in KUBECONFIG.
//
// The first argument names the session. A session requests an action of the test by a line on standard output, and waits
// for a line on standard input. A session that finds a violation panics, and the process ends with a code other than 0.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/workqueue"
)

// deadline is the time limit of each wait.
const deadline = 60 * time.Second

// background is the context of requests without a time limit of their own.
var background = context.Background()

// answers are the lines of the test.
var answers = bufio.NewScanner(os.Stdin)

func main() {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	config := must(clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig())
	config.QPS = -1 // no rate limit of the client
	switch session := os.Args[1]; session {
	case "typed":
		manageTypedObjects(config)
	case "dynamic":
		manageDynamicObjects(config)
	case "informer":
		informThroughRestarts(config, list)
	case "informer-streaming":
		informThroughRestarts(config, stream)
	case "informer-unstreamed":
		informAfterRejectedStream(config)
	case "trimmed":
		informAfterCompaction(config)
	case "manager":
		runManager(config, os.Args[2])
	case "workload":
		runWorkload(config)
	default:
		panic("no session " + session)
	}
}

// must returns a value. An error ends the session.
func must[T any](value T, err error) T {
	succeed(err)
	return value
}

// succeed ends the session on an error.
func succeed(err error) {
	if err != nil {
		panic(err)
	}
}

// check ends the session if a condition does not hold.
func check(condition bool, format string, values ...any) {
	if !condition {
		panic(fmt.Sprintf(format, values...))
	}
}

// equal ends the session if two values differ.
func equal[T comparable](subject string, found, expected T) {
	check(found == expected, "%s: %v instead of %v", subject, found, expected)
}

// ask requests an action of the test and returns the answer.
func ask(action string) string {
	fmt.Println(action)
	check(answers.Scan(), "no answer to %s", action)
	return answers.Text()
}

// eventually waits until a condition holds.
func eventually(subject string, condition func() bool) {
	holds := func(context.Context) (bool, error) { return condition(), nil }
	err := wait.PollUntilContextTimeout(background, 20*time.Millisecond, deadline, true, holds)
	check(err == nil, "%s: not within %v", subject, deadline)
}

// inParallel calls a function for each number below a limit.
func inParallel(limit int, work func(int)) {
	workqueue.ParallelizeUntil(background, 16, limit, work)
}
