// Broken connections, which clients repair, and all other failures, which end a session.

package main

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/go-logr/logr"
	"k8s.io/klog"
)

// pause is the time before a request is repeated.
const pause = 50 * time.Millisecond

// brokenConnections are words in the errors about a connection whose server ended.
var brokenConnections = []string{
	"EOF", "connection reset", "connection refused", "broken pipe", "connection lost", "http2: ", "server closed idle connection",
}

// races are words in the logged errors of an election about an update that another instance, or the same update before a
// reconnect, has overtaken.
var races = []string{"the object has been modified", "already exists"}

// isReconnect returns whether an error is about a broken connection, after which a client repeats its request.
func isReconnect(err error) bool {
	isResponse := apierrors.ReasonForError(err) != metav1.StatusReasonUnknown
	return !isResponse && contains(err.Error(), brokenConnections)
}

func contains(text string, words []string) bool {
	for _, word := range words {
		if strings.Contains(text, word) {
			return true
		}
	}
	return false
}

// permitOnlyReconnects lets the session fail on each error that client-go logs or repeats by itself, other than a broken
// connection.
func permitOnlyReconnects(config *rest.Config) {
	klog.SetLogger(logr.New(strictLog{}))
	config.Wrap(func(inner http.RoundTripper) http.RoundTripper {
		return roundTripper(func(request *http.Request) (*http.Response, error) {
			response, err := inner.RoundTrip(request)
			if err == nil {
				isRefused := response.StatusCode >= 500 || response.StatusCode == http.StatusTooManyRequests
				check(!isRefused, "%s %s: %s", request.Method, request.URL, response.Status)
			}
			return response, err
		})
	})
}

// roundTripper is a function as a transport.
type roundTripper func(*http.Request) (*http.Response, error)

func (send roundTripper) RoundTrip(request *http.Request) (*http.Response, error) {
	return send(request)
}

// strictLog prints the errors that client-go logs, and ends the session on an error other than a reconnect or a race.
type strictLog struct{}

func (strictLog) Init(logr.RuntimeInfo)              {}
func (strictLog) Enabled(int) bool                   { return true }
func (log strictLog) WithValues(...any) logr.LogSink { return log }
func (log strictLog) WithName(string) logr.LogSink   { return log }

func (strictLog) Info(level int, text string, values ...any) {
	// A streamed list that the server does not complete becomes a plain list.
	isUnstreamed := strings.Contains(text, "falling back") && !contains(text, brokenConnections)
	check(!isUnstreamed, "client-go reports: %s", text)
	if level == 0 {
		fmt.Fprintln(os.Stderr, text, fmt.Sprint(values...))
	}
}

func (strictLog) Error(err error, text string, values ...any) {
	line := fmt.Sprint(text, " ", err, " ", fmt.Sprint(values...))
	check(contains(line, brokenConnections) || contains(line, races), "client-go reports: %s", line)
	fmt.Fprintln(os.Stderr, line)
}

// persistently repeats a request while its connection breaks. The result is false if an earlier attempt of the write has
// taken effect.
func persistently(request func() error) bool {
	for isRepeated := false; ; isRepeated = true {
		err := request()
		isOwnEffect := apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err)
		switch {
		case err == nil:
			return true
		case isRepeated && isOwnEffect:
			return false
		case !isReconnect(err):
			panic(err)
		}
		fmt.Fprintln(os.Stderr, "reconnect:", err)
		time.Sleep(pause)
	}
}

// reportWatchErrors lets an informer end the session on each error of a watch other than a reconnect.
func reportWatchErrors(informer cache.SharedInformer) {
	succeed(informer.SetWatchErrorHandler(func(_ *cache.Reflector, err error) {
		check(isReconnect(err), "the informer lists again: %v", err)
		fmt.Fprintln(os.Stderr, "reconnect:", err)
	}))
}
