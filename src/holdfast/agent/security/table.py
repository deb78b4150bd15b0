"""The table of programs: the permitted options of each, and the use of its operands.

A row is `names kind options`; lines that begin with a blank continue it. `git.log,diff` are
commands of git, and `pnpm.` has the options before any command. An option that is not in its row
makes the risk unknown.

| option | meaning |
|---|---|
| `-ab`, `long`, `:word` | letters, a name with two dashes, a name with one |
| `#`, `&name` | numbers, a group |
| `=`, `?` at the end | it has a value, it may have a glued one; the kind of the value follows |
| then `+`, `^` | it changes something, it throws work away (high) |
| then `$`, `*` | it sends something to an address, it works on whole folders or only lists |

A kind has a letter of this table or of `TEXTS` for each operand. A star repeats the letter before
it; the letters after a star are for the last operands.

| letters | operand |
|---|---|
| `r`, `R` | a file to read, a folder to read |
| `w`, `D` | a path to write to, a path to delete |
| `l`, `c` | a path whose name is looked at, a file whose code is run |
| `s` | a text, or `@` and a file |
| `p`, `a` | a path or name of the project, or that or any text |
| `g`, `O` | a revision or a file to read, a file to replace |
| `i`, `y` | a package of Python, of npm |
| `t`, `x` | a text, anything |
| `X`, `0` | another program with its words, none |

Signs after a kind:

| sign | the program |
|---|---|
| `+`, `%` | changes something where it stands, does so if it has operands (medium) |
| `@`, `!` | fetches something, runs the project's own code (medium) |
| `~` | may make links, so that the paths of later commands are not known |
| `^` | is high, for the reason that follows |
"""

from __future__ import annotations

from holdfast.tools.names import word_set

GROUPS = {
    # Long options of programs that only read. Their values are glued on: a word behind one counts
    # as an operand, which is judged more strictly.
    "long": """all? brief color? count extended-regexp no-messages fixed-strings format?
        human-readable ignore-all-space ignore-case invert-match key? line-number lines? list? long
        max-depth? no-filename null numeric-sort only-matching quiet reverse size sort? summarize
        text time? type? unified? unique utc verbose version-sort width? with-filename
        word-regexp""",
    "log": """# -abcdefghiklpqrstuvwzEFPRWy0 -nGSU= -M? -B? -C? oneline stat? numstat shortstat
        summary name-only name-status patch no-patch graph decorate? no-decorate all pretty?
        format= abbrev-commit date= author= grep= since= after= max-count= skip= merges no-merges
        -L=g first-parent follow reverse color? no-color word-diff? cached staged unified=
        ignore-space-change ignore-all-space diff-filter= quiet check no-ext-diff no-textconv
        count until= before= find-renames? topo-order remotes? branches? tags? left-right""",
    "ref": "count= sort= format= points-at=* merged?* no-merged?* contains?* color? list*",
    "replay": "continue abort skip quit no-edit no-commit quiet no-verify",
    "node": """-DEPOdsyaq -w? -C?c save-dev save legacy-peer-deps force silent no-audit no-fund
        ignore-scripts production omit? json depth? all long frozen-lockfile if-present
        no-frozen-lockfile workspaces workspace? workspace-root quiet verbose dev yes -r""",
    "tool": """-qvsnjhlTiwdbxaA fix check diff quiet verbose write watch? format? output-format?
        statistics select? ignore? exclude? exit-zero no-fix no-cache line-length? json -p?c
        max-line-length? config?c strict ignore-missing-imports disable? enable? count color?
        no-color ext? max-warnings? noEmit project?c skipLibCheck errors-only jobs? check-only -E
        recursive all-files all -l? -W? -r rcfile?c build debug dry-run list ci coverage? filter?
        verbosity? bail? unsafe-fixes show-source preview pretty max-complexity? keepdb no-input
        tag? testNamePattern? updateSnapshot runInBand silent passWithNoTests no-coverage forceExit
        maxWorkers? run reporter? headed? grep? workers? timeout? failfast settings? target?""",
    "go": """:v :m :race :cover :short :count= :run= :bench= :benchmem :timeout= :parallel=
        :tags= :coverprofile=w :failfast :json :o=w :mod= :f= :e :u""",
}

PROGRAMS = """
echo,true,false,:,whoami,expr,sleep,basename,dirname,type,clear,exit,seq,id,which,
 whereis x*
base64 r* -diD -w= decode &long | cat r* -AbeEnstTuv number &long
cmp,comm,column,expand,fold,fmt,nl,paste,tac,rev,size,strings,od,hexdump,nm,join,objdump,readelf,zcat
 r* # -0123abcdefhgiklmnopqrstuvwxyzACDEFHIJLMNPRSTVW?r table &long
md5sum,sha1sum,sha256sum,sha512sum,shasum,cksum,b2sum r* -btwz -a= tag &long | wc r* -clmLw &long
cut r* -nsz -bcdf= complement only-delimited output-delimiter= &long
date d* -uR -d= -I? date= iso-8601? utc | df l* -aHhiklPTv -tBx= output? &long
diff r* # -abBcdeEHiNnpPqstTuvwyZ -r* -CUIxWFSD= recursive* new-file &long
du l* -0aAbcDHhkLlmPSsx -dtB= max-depth= exclude= apparent-size &long
find l* -LPH :print :print0 :ls :prune :quit :depth :d :mount :xdev :empty :true :readable :writable
 :executable :daystart :a :and :o :or :not :name= :iname= :path= :ipath= :regex= :iregex= :lname=
 :wholename= :printf= :type= :xtype= :size= :mtime= :mmin= :atime= :ctime= :perm= :user= :newer=
 :maxdepth= :mindepth= :regextype= :newermt= :amin= :cmin= :group= :links= :nouser :nogroup :noleaf
xargs X -0rt -nILPs= null no-run-if-empty max-args= verbose | bc r* -lqs
file r* -bEhikLNnrsSv0 -eFP= mime-type &long
free,w,who,lscpu,lsblk,uptime 0 # -abhmgktwpsfiuHTJlq &long
grep,egrep,fgrep tr* # -abcEFGHhiIlLnoPqsTuUvwxyZz -rR* -eABCm= -f=r max-count= include= exclude=
 exclude-dir= context= files-with-matches recursive* &long
head r* # -qvz -nc= lines= bytes= &long | tail r* # -fFqvz -ncs= lines= bytes= &long
hostname 0 -adfisI | iconv r* -cls -ft= -o=w from-code= to-code= output=w
jq jr* -nrjaeCMsScR null-input raw-output slurp sort-keys compact-output | man,whatis e* -fkaw
less,more r* # -aeEFgGiIJmMnNqQrRsSuUwWX | locale,sysctl e* -ackvnmtqNA &long
ls,dir l* -aAbBcCdDfFgGhHiklLmnNopqQrRsStuUvxXZ1 -ITw= almost-all time-style? &long
lsof t* -abhlnNPRtUvV -cdgpsu= -i? | netstat,ss,nproc,arch,uname,groups,users,
 tty,cal t* -aAcghlmnopstTuUevrdi6Hx all
pgrep,pidof t* -afilnovxs -uPt= &long
top 0 -bcHi -ndpuow= | ip.addr,a,address,link,route 0 | ip.addr,address,link,route.show t*
ps Bt* -AaCdeFfHjLlMNTwyV -CGgopqstuUknO= forest no-headers sort= format= pid= user= | pwd 0
readlink,realpath l* -femnqsvzLP canonicalize-existing canonicalize-missing relative-to= &long
rg tr* # -abcFHhiIlLnNopPqrRsSuUvwxz0. -eABCgmtTjMEd= -f=r glob= type= files hidden no-ignore
 files-with-matches context= &long | awk,gawk,mawk tr* -F= -v= field-separator= assign=
sed r* -nErszu -el= -i? expression= in-place? quiet regexp-extended | shuf r* -rz -n= &long
sort r* # -bdfghiMnrRVcCmsuz -ktS= -o=w key= field-separator= output=w &long
stat l* -Lft -c= printf= terse &long | tr t* -cCdst delete complement &long
tree l* du -aAdfiCDFghilnNpqrsStuUvxXJQ -LPI= prune gitignore &long
uniq rw # -cdDiuz -fsw= repeated skip-fields= &long | xxd rw -abCdeEipruhv -cglosn=
unzip.-l,-Z1 r*+ | bash,sh,dash,zsh ca*! -exun
timeout tX -fvp -k= -s= foreground preserve-status kill-after= signal= | nice X # -n= | nohup X
stdbuf X -ioe= | touch w*+ -acmh -dt= -r=r date= reference=r no-create
mkdir w*+ -pv -m=v mode=v parents verbose | rmdir w*+ -pv ignore-fail-on-non-empty parents
truncate w*+ -c -s= size= | tee w* -aip append
cp r*w+ -bfiHLnpTuvx -adlPrRs* -t=w preserve? recursive* target-directory=w
mv w*w+ -fintTuv -t=w target-directory=w | install r*w+ -bcCDpTv -m=v mode=v verbose
rm w*+ -fdvi -rR* -I recursive* force dir verbose one-file-system | chmod vw*+ -cfv verbose
gzip,gunzip,xz w*+ # -cdfkltqv stdout decompress force keep list test
kill z*+ -l :9 :15 :TERM :KILL :INT :HUP | git.shortlog g* -snec
git.log,diff,show,rev-list,diff-tree,whatchanged,diff-index g* &log
git.status g* -sbvz -u? short branch porcelain? untracked-files? ignored?
git.blame g* # -bcefklnpstwz -l= -L=g -M? -C? porcelain
git.grep tg* # -aiIwvhHEFGPnlLzcopqWr -eABCm= ignore-case line-number files-with-matches
git.ls-files g* -cdmosuktvz -x= cached modified others ignored exclude= exclude-standard
git.ls-tree g* -drtlz long name-only name-status full-name full-tree abbrev? format=
git.cat-file,merge-base,name-rev,cherry,show-ref,check-ignore,describe g* -tspeadqvznH all always
 tags is-ancestor
git.for-each-ref t* &ref | git.version,help,count-objects t* -agvH
git.rev-parse t* -q show-toplevel git-dir is-inside-work-tree abbrev-ref? verify short?
git.ls-remote t*@ -htq heads tags refs symref get-url | git.reflog 0 &log | git.reflog.show g* &log
git.bisect.log 0 | git.format-patch g*+ # -o=w stdout
git.remote,worktree,submodule 0 # -v verbose all oneline | git.worktree.list t*
git.submodule.status t* recursive | git.remote.show,get-url t*@ -n | git.lfs.ls-files,status t* -ls
git.stash 0+~ -ukqS -m= include-untracked keep-index quiet
git.stash.push t*+~ -ukqSp -m= include-untracked keep-index quiet message= staged
git.stash.pop,apply,drop t*+~ -q index quiet | git.stash.list,show g* &log
git. - -Pp -C= -c=G no-pager no-optional-locks
git.branch t*% -vqdi -arl* -u=+ -DMfC^ -m all* verbose remotes* show-current move+
 set-upstream-to=+ unset-upstream force^ &ref
git.tag t*% -a -l* -m= -n?* -df^ message= annotate delete^ force^ &ref
git.config t* -lz get get-all list show-origin global local
git.add w*+ -AuvnNf all update verbose dry-run intent-to-add
git.commit t*+ -aqvsn -mcC= -u? -F=r all message= author= amend no-edit no-verify allow-empty
 allow-empty-message file=r signoff dry-run fixup= squash= date= reuse-message= cleanup=
 no-gpg-sign no-status | git.init w*+ -q -b= quiet initial-branch=
git.mv w*w+~ -vkn verbose dry-run | git.rm w*+~ -qnr quiet dry-run cached ignore-unmatch
git.apply r*+~ -vR3N -p= check stat reverse cached
git.checkout O*+~ -qtd -b= -f^ -B=^ quiet detach track? no-track orphan= force^
git.switch t*+~ -qd -c= quiet create= detach track? no-track orphan=
git.restore O*+~ -Sq staged quiet -s= source= -W^ worktree^
git.reset t*+ -qN quiet soft mixed hard^ merge^ keep^
git.clean t* -ndxXqf -e= dry-run quiet force exclude=
git.revert,cherry-pick t*+~ -nxs -m= mainline= allow-empty &replay
git.rebase t*+~ -qvn onto= autostash no-autostash keep-empty &replay
git.merge t*+~ -qvn -m= -s= no-ff ff ff-only squash &replay
git.fetch t*+ -apqvtn all prune tags no-tags quiet verbose depth= unshallow
git.pull t*+~ no-edit -qvrn rebase? no-rebase ff-only ff no-ff quiet verbose autostash
git.clone t*+~ -qvnl -b= -o= branch= depth= single-branch quiet
git.push,filter-branch,filter-repo,send-email ^ rewrites or sends out history
pytest p*! -qvxslhV -knmWr= tb= maxfail= durations= lf verbose quiet no-header fixtures pdb co
 doctest-modules last-failed failed-first ff nf stepwise sw strict-markers showlocals runxfail cov?
 import-mode= log-cli-level= log-level= cov-config=c no-cov numprocesses= dist= reruns= deselect=
 benchmark-only benchmark-skip benchmark-disable asyncio-mode= rootdir=c no-summary exitfirst -c=c
 junitxml=w cache-clear ds= reuse-db create-db ignore-glob= show-capture= log-cli? runslow color=
 collect-only capture= cov-report= ignore= disable-warnings timeout= setuponly lfnf= -p=
sphinx-build p*! -WEaqnTN -bj= -D= -M=e keep-going
jest,vitest,mocha,playwright,cypress p*! -uioibw -c=c runInBand testNamePattern= reporter= grep=
 -t= -g= &tool
ruff,black,mypy,pyright,flake8,pylint,isort,eslint,prettier,tsc,stylelint,rubocop,yapf,bandit,
 golangci-lint,shellcheck,clang-format,clang-tidy,rustfmt,gofmt,phpstan,yamllint,hadolint,
 pre-commit,codespell p*! &tool | rake,just p*! -nqvTPl list dry-run tasks trace
rspec,phpunit,sbt,ant,gulp,next,vite,webpack,turbo,nx,vue-tsc,astro p*! -c=c -ft? &tool
django,django-admin,alembic,flask p*! -WEaf -b= &tool
sqlfluff p*! rules? dialect? force &tool | mkdocs.build p*! -qcs strict clean
tox,nox p*! -qvrpla -e= -s= list recreate parallel?
coverage p*! -mi source= show-missing skip-covered include= -d=w -o=w
mvn,mvnw,gradle,gradlew p*! -qBeoXi :am :version -D= quiet batch-mode offline stacktrace tests=
 no-daemon -x= -P= :pl= -f=c | make,gmake m*! -knpsBiw -j? -O? -C=c -f=c keep-going dry-run jobs?
cmake m*! -S=c -B=w -G= -D=m -j? build=w target= config= parallel? preset= fresh
ctest p*! -VNQ -R= -E= -j= output-on-failure verbose test-dir=c | ninja p*! -v -j= -C=c
gcc,g++,cc,clang,clang++ r*! -cvESgs -o=w -O?o -W?o -I=r -L=r -l= -D= -U= :std= :pthread :fPIC
 :fsyntax-only :fsanitize= | rustc r*! -O -g -o=w edition= crate-type= explain=
javac p*! :d=w :g :cp=c :classpath=c | java p*! :cp=c :classpath=c :jar=c :ea :version
node,nodejs ca*! test check watch test-reporter= | tsx,ts-node,lua,perl,ruby,php ca*! -wclT -I?
python ca*! -uBvIsSEOb -W= -X=P | python.unittest p*! -vqfbc -k= verbose failfast -s=c -p= -t=c
python.compileall,py_compile w*! -qf | python.json.tool rw! sort-keys indent= compact
python.doctest,build p*! -vnsw wheel sdist | python.cProfile ca*! -s= | python.venv w*! clear
pip.config.list t* | pip.list,show,freeze,check,help t* -vfloeq format= outdated local user files
pip.index.versions t*@ pre
pip.install,download,wheel i*! -qUvI -rc=c -e=i -dt=w quiet upgrade no-deps no-cache-dir timeout=
 retries= no-input prefer-binary upgrade-strategy= progress-bar= only-binary= no-binary= verbose
 no-build-isolation dry-run ignore-installed root-user-action= disable-pip-version-check no-cache
 constraint=c force-reinstall pre editable=i requirement=c break-system-packages
pip.uninstall t*! -yq yes quiet
uv.sync,lock,tree,build,init,export,venv p*! -qU quiet dev frozen locked check all-extras extra=
 group= | uv.add,remove i*! -q dev group= optional= extra=
poetry,pdm,pipenv.show,check,info,list,install,add,remove,update,lock,build,sync i*!
 -qynvDG quiet yes no-interaction with? dev no-root all-extras -E? tree
conda,mamba.create,install i*! -qy -n=e -c=C yes quiet name=e channel=C file=c
conda,mamba.list,search,info t*@ -n= name= | conda.env.list t*
npm. - -s silent prefix=c -w= workspace= workspaces | yarn. - -s silent cwd=c
pnpm. - -rsw silent recursive filter= -F= -C=c dir=c workspace-root
npm.ls,list,why,explain,root,bin,prefix t* -g global &node | npm.config.get,list t* json
pnpm,yarn.ls,list,why,root,bin,prefix t*! -g pattern= &node | pnpm,yarn.config.get,list t*! json
npm.view,info,show,outdated,search,audit,fund,version t*@ &node
pnpm,yarn.view,info,show,outdated,search,audit,fund,version t*! &node
npm,yarn,pnpm.install,i,ci,add,update,up,upgrade,dedupe,prune,remove,rm,uninstall,rebuild y*! &node
bun.install,add,remove y*! -d dev production frozen-lockfile
npm,yarn,pnpm.run,run-script,test,t,start,build,lint,dev,format,typecheck,check p*! &node &tool
npm.pack p*! dry-run json
cargo.build,b,test,t,check,c,run,r,clippy,fmt,doc,bench,tree,metadata,clean,update,fetch,nextest
 p*! -qvr -j= -pFi= release quiet verbose all workspace all-targets all-features check fix no-deps
 no-default-features features= lib bins tests bin= test= package= message-format= format-version=
cargo.add,remove y*! dev build features= no-default-features optional -F= | go.run pa*! &go
go.build,test,vet,fmt,mod,list,version,clean,doc,generate,get p*! &go | go.env t*! :json
bundle.install,check,list,show i*! quiet jobs= | composer.install,validate,show,test y*!
dotnet.build,test,run,restore,format,clean,list p*! -vqc? configuration= no-restore no-build
 verbosity= filter= | deno,bun.test,lint,check,fmt,info,task p*! quiet check coverage watch bail
zig,dune,stack,cabal,mix,flutter,dart,swift.build,test,fmt,format,check,analyze p*!
docker.ps,images,logs,version,info t*@ -aqnfts all tail? since? | docker.compose.ps,logs t*@ -aqnft
gh.pr,issue,repo,run,release,workflow.list,view,status,diff,checks,watch t*@ color? -cwj -LsRalqBHA?
 job? interval? limit? state? json? repo? comments log log-failed name-only author? label? jq?
gh.api p*@ jq= -q= paginate -XfF=^ method=^ field=^ raw-field=^ input=^
apt.list,show,search,policy t* -a installed upgradable | apt-cache.search,show,policy t* -n
dpkg.-l,-L,-s,-S t* | crontab.-l 0 | ping,host,nslookup,dig t*@ -46nv -c= -i= -W= -w= -t= count=
systemctl.status,list-units,is-active,is-enabled t* -aln all no-pager type= state=
curl t* -sSfLIigGkvNO0246j -dF=s$ -T=r$ -ub=$ -Hw=h -XAmYyrCz= -o=w silent show-error fail location
 head verbose compressed data=$ data-raw=$ data-binary=$ request= data-urlencode=$ upload-file=r$
 header=h user-agent= output=w max-time=
wget t* -qvcNnSd -O=w -o=w -P=w -t= -T= -U= quiet output-document=w spider post-data=$
rsync,ssh,scp,sftp,nc,ncat,socat,aws,gcloud,terraform,helm,kubectl,twine,gpg,openssl,gh
 ^ reaches another machine, or handles keys
docker,podman,mkfs,fdisk,mount,umount,dd,shred,reboot,shutdown,pkill,killall,useradd,usermod,passwd,
 chattr,chown,iptables,dpkg,rpm,crontab,systemctl,service,apt,apt-get ^ changes the system
uvx,pipx,bunx,brew,gem,rustup ^ fetches a program and runs it
su,sudo,doas,chroot,nsenter,pkexec ^ runs it with more rights
"""

# Letters of a kind whose words are judged by their text alone. Each has a pattern of the allowed
# texts, and the reason why another text is high (`!`) or unknown (`?`). Lines that begin with a
# blank continue the one before. `m` is a variable of make, `v` permissions, `j` a program of jq,
# `G` a setting of git.
TEXTS = r"""
e? [\w.+-]+  # is given a text that may change something, or name a file to read
d? \+.*  # may set the clock
z! %\d*|[1-9]\d+|[2-9]|\x02  # ends processes that are not known beforehand
y? (?:@[a-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*(?:@[\^~<>=]*[A-Za-z0-9][\w.+-]*)?  # installs something
  other than a named package
i? [A-Za-z0-9][\w.-]*(?:\[[\w,.-]+\])?(?:\s*(?:,\s*)?(?:[=!~<>]?=|===
 |[<>])\s*[\w.*+!-]+)*  # installs something other than a named package
m? (?!(?:SHELL|MAKEFLAGS)=)\w+(?::\w+)?=(?:\d*|yes|no|true|false|on|off|release|debug
 |RelWithDebInfo|MinSizeRel|gcc|clang|cc|g\+\+|clang\+\+
 |python3?)  # is given a variable that may run something
v! 0?[0-7][0-7][0145]|[ugoa]*[-+=][rxX]*|[ug]+[-+=][rwxX]*|\+[rwxX]*
 |[ugoa]*-[rwxX]*(?:,[ug]*[-+=][rwxX]*)*|u=[rwx]*(?:,(?:g|o
 |go)=[rx]*)*  # lets all users write, or grants rights
P? importtime|dev|utf8|faulthandler|tracemalloc  # may import something
j? (?!(?s:.*)(?:\$ENV|(?<![.\w$\"])env\b|\b(?:import|include|input_filename|get_search_list)\b
 |\$__prog))(?s:.*)  # has a program that may read the environment or other files
o? (?![lpa],)[\w,=+-]*  # gives options to another program
B! [^e]*  # may show the environment of other processes
C? conda-forge|defaults|bioconda|pytorch|nvidia  # installs from a channel that is not known
h? (?!@)(?!.*%output).*  # shows a file, or writes to one
G! (?:user\.(?:name|email)|color\.[\w.]+|advice\.\w+|core\.(?:quotepath|autocrlf|abbrev|ignorecase)
 |init\.defaultbranch|commit\.gpgsign|log\.\w+|diff\.(?:renames|noprefix))(?:=(?s:.*))?
 |core\.pager=(?:cat)?  # is given a setting that may run a program
"""
# Settings in a repository's configuration that run no program.
GIT_SETTINGS = r"""
repositoryformatversion filemode bare logallrefupdates ignorecase precomposeunicode symlinks
eol autocrlf safecrlf quotepath abbrev untrackedcache longpaths url fetch pushurl tagopt prune
mirror remote merge rebase ff pushremote vscode-merge-base gk-\S+ github-pr-\S+ name email gpgsign
active required access defaultbranch default autosetupremote ui objectformat
worktreeconfig renames conflictstyle auto sparsecheckout postbuffer version enabled
"""
# Programs that only read the files behind their other words.
READERS = word_set("cat du echo egrep fgrep file grep head ls md5sum sha256sum stat tail wc")
# Programs that write given text; redirections do the same, and copies of such files.
WRITERS = word_set("tee sed curl wget iconv sort uniq xxd git.mv")
# Programs of the npm packages of their name.
NODE_TOOLS = word_set("""
ts-node tsx tsc jest vitest mocha playwright cypress eslint prettier stylelint gulp next vite nx
webpack turbo vue-tsc astro
""")
# Programs that print their version and nothing else.
VERSIONED = word_set("""
python python2 python3 pip pip3 node nodejs ruby perl php gcc g++ cc clang git make cmake java javac
npm bash tar curl wget aws docker gh jq rg sqlite3 ffmpeg tsc conda uv ruff psql terraform kubectl
openssl lua ipython jupyter deno Rscript cython julia rustc cargo ssh rsync zip unzip gdb htop patch
""")
# Programs whose options end at the first operand.
STOPS = word_set(
    "awk gawk mawk timeout nice nohup stdbuf python node nodejs ruby perl bash sh dash zsh php lua"
    " java go.run xxd"
)
# Interpreters, programs that run a program of the project, and options that may precede its name.
INTERPRETERS = word_set("bash sh dash zsh node nodejs ruby perl php lua tsx ts-node")
RUNNERS = word_set("uv.run poetry.run pdm.run pipenv.run bundle.exec npm.exec pnpm.exec yarn.exec")
RUN_OPTIONS = word_set(
    "-- --quiet -q --no-sync --frozen --locked --all-extras --dev --no-install --no"
)
