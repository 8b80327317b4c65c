// Command controlplane is the Kubernetes control plane that the end-to-end tests run on loopback: etcd,
// kube-apiserver, kube-scheduler and kube-controller-manager in one program, each under the name of its real binary.
//
// One program, because linking is what a warm build spends its time on: four binaries link four times. The name comes
// from argv[0] (a symlink, as in busybox) or, failing that, from the first argument.
package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	_ "time/tzdata" // time zones of CronJobs on machines without a zone database

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client-go's metrics on /metrics
	_ "k8s.io/component-base/metrics/prometheus/version"  // the version metric
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

var components = map[string]func(args []string){
	"etcd":                    etcdmain.Main,
	"kube-apiserver":          command(apiserver.NewAPIServerCommand),
	"kube-controller-manager": command(controllermanager.NewControllerManagerCommand),
	"kube-scheduler":          command(func() *cobra.Command { return scheduler.NewSchedulerCommand() }),
}

// command runs a component the way its own main function does. The commands read os.Args themselves.
func command(newCommand func() *cobra.Command) func([]string) {
	return func(args []string) {
		os.Args = args
		os.Exit(cli.Run(newCommand()))
	}
}

func main() {
	args := os.Args
	run, found := components[filepath.Base(args[0])]
	if !found && len(args) > 1 {
		args = args[1:]
		run, found = components[args[0]]
	}
	if !found {
		names := slices.Sorted(maps.Keys(components))
		fmt.Fprintf(os.Stderr, "%q is none of %s\n", args[0], strings.Join(names, ", "))
		os.Exit(2)
	}
	run(args)
}
