// The inputs of the managers, with a watch that must deliver each acknowledged write.

package main

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	typedv1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// workload are the inputs of a manager, their expected data, and the versions of acknowledged writes.
type workload struct {
	configMaps   typedv1.ConfigMapInterface
	lock         sync.Mutex
	expected     map[string]string
	acknowledged []uint64
}

// runWorkload creates OBJECTS inputs of a manager and changes them in rounds, while servers end at any time. After each
// round each output equals its input. The test decides about further rounds. At the end, a watch that continued over all
// reconnects has delivered each acknowledged write once and in order.
func runWorkload(config *rest.Config) {
	permitOnlyReconnects(config)
	client := kubernetes.NewForConfigOrDie(config)
	load := &workload{configMaps: client.CoreV1().ConfigMaps("default"), expected: map[string]string{}}
	count := must(strconv.Atoi(os.Getenv("OBJECTS")))
	events := load.watchInputs()
	inParallel(count, func(number int) { load.create(fmt.Sprintf("input-%d", number), "0") })
	outputs := informAboutOutputs(client)
	round := 0
	for ; ; round++ {
		load.awaitOutputs(outputs)
		if ask("round") != "more" {
			break
		}
		for number := range 10 {
			changed, replaced := fmt.Sprintf("input-%d", (round*20+number)%count), fmt.Sprintf("input-%d", (round*20+number+10)%count)
			load.change(changed, fmt.Sprint(round))
			persistently(func() error { return load.configMaps.Delete(background, replaced, deleting) })
			load.create(replaced, fmt.Sprint(round))
		}
	}
	events.assertDelivered(load.acknowledged)
	fmt.Fprintf(os.Stderr, "%d rounds, %d acknowledged writes\n", round, len(load.acknowledged))
}

// create creates an input.
func (load *workload) create(name, value string) {
	input := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{partLabel: "input"}},
		Data:       map[string]string{"value": value},
	}
	load.write(name, value, func() (*corev1.ConfigMap, error) { return load.configMaps.Create(background, input, creating) })
}

// change changes the data of an input.
func (load *workload) change(name, value string) {
	patch := fmt.Appendf(nil, `{"data": {"value": %q}}`, "changed-"+value)
	load.write(name, "changed-"+value, func() (*corev1.ConfigMap, error) {
		return load.configMaps.Patch(background, name, types.MergePatchType, patch, patching)
	})
}

// write sends a write until a response, and records the version and the value.
func (load *workload) write(name, value string, send func() (*corev1.ConfigMap, error)) {
	var written *corev1.ConfigMap
	isAcknowledged := persistently(func() (err error) {
		written, err = send()
		return err
	})
	load.lock.Lock()
	defer load.lock.Unlock()
	load.expected[name] = value
	if isAcknowledged {
		load.acknowledged = append(load.acknowledged, version(written))
	}
}

// informAboutOutputs keeps a copy of the outputs, with a streamed list if KUBE_FEATURE_WatchListClient is set.
func informAboutOutputs(client kubernetes.Interface) cache.Store {
	selected := informers.WithTweakListOptions(func(options *metav1.ListOptions) { options.LabelSelector = partLabel + "=output" })
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace("default"), selected)
	informer := factory.Core().V1().ConfigMaps().Informer()
	reportWatchErrors(informer)
	factory.Start(background.Done())
	factory.WaitForCacheSync(background.Done())
	return informer.GetStore()
}

// awaitOutputs waits until there is one output for each input, with the data of the input.
func (load *workload) awaitOutputs(outputs cache.Store) {
	eventually("each output equals its input", func() bool {
		all := outputs.List()
		for _, object := range all {
			output := object.(*corev1.ConfigMap)
			if output.Data["value"] != load.expected[strings.TrimPrefix(output.Name, outputPrefix)] {
				return false
			}
		}
		return len(all) == len(load.expected)
	})
}

// deliveries are the events of a watch that continues over reconnects.
type deliveries struct {
	lock     sync.Mutex
	versions []uint64
}

// watchInputs watches all changes of inputs from the present.
func (load *workload) watchInputs() *deliveries {
	selected := metav1.ListOptions{LabelSelector: partLabel + "=input"}
	var list *corev1.ConfigMapList
	persistently(func() (err error) {
		list, err = load.configMaps.List(background, selected)
		return err
	})
	source := &cache.ListWatch{WatchFunc: func(options metav1.ListOptions) (watch.Interface, error) {
		options.LabelSelector = selected.LabelSelector
		return load.configMaps.Watch(background, options)
	}}
	watcher := must(watchtools.NewRetryWatcher(list.ResourceVersion, source))
	events := &deliveries{}
	go func() {
		for event := range watcher.ResultChan() {
			check(event.Type != watch.Error, "the watch ends with %v", event.Object)
			events.add(version(event.Object.(*corev1.ConfigMap)))
		}
	}()
	return events
}

func (events *deliveries) add(delivered uint64) {
	events.lock.Lock()
	defer events.lock.Unlock()
	if count := len(events.versions); count > 0 {
		last := events.versions[count-1]
		check(last < delivered, "version %d is delivered after version %d", delivered, last)
	}
	events.versions = append(events.versions, delivered)
}

// assertDelivered waits until the watch has delivered the newest version, and ends the session if another is missing.
func (events *deliveries) assertDelivered(acknowledged []uint64) {
	newest := slices.Max(acknowledged)
	eventually("the watch delivers the newest write", func() bool {
		events.lock.Lock()
		defer events.lock.Unlock()
		return len(events.versions) > 0 && events.versions[len(events.versions)-1] >= newest
	})
	events.lock.Lock()
	defer events.lock.Unlock()
	for _, version := range acknowledged {
		_, isDelivered := slices.BinarySearch(events.versions, version)
		check(isDelivered, "the watch lost the event of version %d", version)
	}
}
