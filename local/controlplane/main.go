// Controlplane is one program that can be any part of a Kubernetes control plane, or one of its two clients.
//
// Which one it is comes from the name it is called by, so that the folder of the built binary holds links named etcd,
// kube-apiserver, kubectl and so on; called as "controlplane", its first argument is the name. One program rather than six
// shares the packages that all of them contain: one link step, and one file of the size that each would have.
package main

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	helm "helm.sh/helm/v4/pkg/cmd"
	helmkube "helm.sh/helm/v4/pkg/kube"
	"k8s.io/component-base/cli"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"

	// The components' own main packages import these for their side effects: JSON logs, client and build metrics.
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
)

// roles maps the name of a program to what it does; each returns the exit status. os.Args is already the program's own.
var roles = map[string]func() int{
	"etcd": func() int {
		etcdmain.Main(os.Args)
		return 0
	},
	"kube-apiserver":          component(apiserver.NewAPIServerCommand),
	"kube-controller-manager": component(controllermanager.NewControllerManagerCommand),
	"kube-scheduler":          component(func() *cobra.Command { return scheduler.NewSchedulerCommand() }),
	"kubectl":                 runKubectl,
	"helm":                    runHelm,
}

func component(command func() *cobra.Command) func() int {
	return func() int { return cli.Run(command()) }
}

// runKubectl leaves the wording of errors and the exit status to kubectl's own helper, as the released kubectl does:
// `kubectl diff`, for one, answers by its exit status.
func runKubectl() int {
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		kubectlutil.CheckErr(err)
		return 1
	}
	return 0
}

func runHelm() int {
	// Helm's default field manager is the name of the executable, which here may be "controlplane".
	helmkube.ManagedFieldsManager = "helm"
	command, err := helm.NewRootCmd(os.Stdout, os.Args[1:], helm.SetupLogging)
	if err != nil {
		slog.Warn("helm could not start", slog.Any("error", err))
		return 1
	}
	if err := command.Execute(); err != nil {
		var failed helm.CommandError
		if errors.As(err, &failed) {
			return failed.ExitCode
		}
		return 1
	}
	return 0
}

func main() {
	name := filepath.Base(os.Args[0])
	if _, called := roles[name]; !called && len(os.Args) > 1 {
		os.Args = os.Args[1:]
		name = os.Args[0]
	}
	role, known := roles[name]
	if !known {
		names := strings.Join(slices.Sorted(maps.Keys(roles)), ", ")
		fmt.Fprintf(os.Stderr, "controlplane: %q is not one of its programs: write one of %s as the first argument\n", name, names)
		os.Exit(2)
	}
	os.Exit(role())
}
